# The controller of the cluster's resources (deploy/helm), and nothing else.
# `scripts/images.sh controller` makes the same image without a builder. To build it for publishing, from the repository's root:
#   make build && docker build -f deploy/controller.Dockerfile -t REGISTRY/controller:VERSION bin
FROM scratch
COPY sandbox-controller /sandbox-controller
USER 65532:65532
EXPOSE 8080 8081
ENTRYPOINT ["/sandbox-controller"]
