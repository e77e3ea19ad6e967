# The in-sandbox daemon and the process 1 that starts it, and nothing else: the server copies /opt/sandbox out of this image into every
# sandbox.
# `make images` makes the same image without a builder. To build it for publishing, from the repository's root:
#   make build && docker build -f deploy/execd.Dockerfile -t REGISTRY/execd:VERSION bin
FROM scratch
COPY execd execd-init /opt/sandbox/
ENTRYPOINT ["/opt/sandbox/execd"]
