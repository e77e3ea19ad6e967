# The egress sidecar: process 1, which keeps the network namespace alive, and the egress daemon below it. Nothing else.
# `make images` makes the same image without a builder. To build it for publishing, from the repository's root:
#   make build && docker build -f deploy/egress.Dockerfile -t REGISTRY/egress:VERSION bin
FROM scratch
COPY egress egress-init /opt/sandbox/
EXPOSE 18080
ENTRYPOINT ["/opt/sandbox/egress-init", "/opt/sandbox/egress"]
