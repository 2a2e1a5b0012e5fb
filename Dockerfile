# The router alone; llama-servers have images of their own. See docs/how-to/run-as-a-service.md.
#
#   docker build -t specrouter .
FROM python:3.12-slim

COPY pyproject.toml README.md LICENSE /source/
COPY specrouter /source/specrouter
COPY plugins /source/plugins
RUN python -m pip install --no-cache-dir --disable-pip-version-check /source && rm -r /source \
  && useradd --uid 10001 --create-home specrouter

USER specrouter
EXPOSE 8000

# The folder with topology.yaml is mounted at /etc/specrouter. Its `listen.host` must be 0.0.0.0, so it needs a key.
ENTRYPOINT ["specrouter"]
CMD ["serve", "/etc/specrouter/topology.yaml", "--port", "8000"]

# /health needs no key, and answers 503 while the router is being stopped.
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s CMD ["python", "-c", "\
import http.client, sys; \
router = http.client.HTTPConnection('127.0.0.1', 8000, timeout=4); \
router.request('GET', '/health'); \
sys.exit(router.getresponse().status != 200)"]
