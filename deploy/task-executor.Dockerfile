# The task-executor of a pod: process 1, which keeps the container and its tasks alive, and the executor below it. Nothing else.
# `make images` makes the same image without a builder. To build it for publishing, from the repository's root:
#   make build && docker build -f deploy/task-executor.Dockerfile -t REGISTRY/task-executor:VERSION bin
FROM scratch
COPY task-executor task-executor-init /opt/sandbox/
EXPOSE 5758
ENTRYPOINT ["/opt/sandbox/task-executor-init", "/opt/sandbox/task-executor"]
