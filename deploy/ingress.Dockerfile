# The ingress, and nothing else. For a service with a public certificate, mount root certificates and name them in SSL_CERT_FILE.
# `scripts/images.sh ingress` makes the same image without a builder. To build it for publishing, from the repository's root:
#   make build && docker build -f deploy/ingress.Dockerfile -t REGISTRY/ingress:VERSION bin
FROM scratch
COPY sandbox-ingress /sandbox-ingress
USER 65532:65532
EXPOSE 8081 9081
ENTRYPOINT ["/sandbox-ingress"]
