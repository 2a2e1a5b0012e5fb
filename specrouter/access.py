"""Who may use which routes: the keys of a topology."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers

from .config import ApiKey, Limits
from .errors import Unauthorized
from .limits import Gate


class Access:
    """The keys that clients may use. Without any, every client is answered.

    Where a key and its limits are the same as with the `previous` topology, its requests are counted on.
    """

    def __init__(self, keys: Sequence[ApiKey], previous: Access | None = None) -> None:
        self.keys = keys
        kept = {} if previous is None else previous._gates
        self._gates: dict[str, Gate] = {key.name: Gate(key.limits, f"the API key {key.name!r}") for key in keys}
        self._gates |= {key.name: kept[key.name] for key in keys if _limits(kept.get(key.name)) == key.limits}

    def identify(self, headers: Headers) -> ApiKey | None:
        """The key that a request carries, None where none is needed. Raises Unauthorized."""
        if not self.keys:
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else ""
        offered = bearer or headers.get("x-api-key", "")
        # Every key is compared, and in constant time: neither content nor position of the right one shows.
        matching = [key for key in self.keys if hmac.compare_digest(offered.encode(), key.secret.encode())]
        if not matching:
            said = "no API key" if not offered else "a wrong API key"
            raise Unauthorized(f"{said} was sent; send one as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'")
        return matching[0]

    def gate(self, key: ApiKey | None) -> Gate | None:
        """What limits the requests of a key."""
        return None if key is None else self._gates[key.name]


def _limits(gate: Gate | None) -> Limits | None:
    return None if gate is None else gate.limits
