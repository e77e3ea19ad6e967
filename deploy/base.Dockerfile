# A plain Debian with bash, coreutils, curl and python3. Where no registry can be reached, scripts/images.sh makes
# its like with debootstrap: keep the list of packages there equal.
FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates curl python3 \
    && rm -rf /var/lib/apt/lists/*
CMD ["bash"]
