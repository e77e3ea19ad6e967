# The lifecycle service, and nothing else: on Kubernetes (deploy/helm), or beside a Docker Engine whose socket it can open.
# `scripts/images.sh server` makes the same image without a builder. To build it for publishing, from the repository's root:
#   make build && docker build -f deploy/server.Dockerfile -t REGISTRY/server:VERSION bin
FROM scratch
COPY sandbox-server /sandbox-server
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/sandbox-server"]
