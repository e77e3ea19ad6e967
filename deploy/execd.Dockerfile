# The in-sandbox daemon, and nothing else: the server copies /opt/sandbox out of this image into every sandbox.
# `make images` makes the same image without a builder. To build it for publishing, from the repository's root:
#   make build && docker build -f deploy/execd.Dockerfile -t REGISTRY/execd:VERSION bin
FROM scratch
COPY execd /opt/sandbox/execd
ENTRYPOINT ["/opt/sandbox/execd"]
