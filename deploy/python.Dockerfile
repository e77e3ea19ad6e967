# The base image with a Jupyter kernel for Python and nothing else: a tenth of code-interpreter. `scripts/images.sh --archives python` makes its
# like without a Docker Engine: keep the packages and the variables there equal.
FROM sandbox/base:dev
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-ipykernel \
    && rm -rf /var/lib/apt/lists/*
ENV LANG=C.UTF-8 \
    PYDEVD_DISABLE_FILE_VALIDATION=1
CMD ["bash"]
