"""The plugins that come with specrouter: one file each, using only what any plugin may use."""
