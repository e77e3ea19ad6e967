# The base image with Jupyter Server and a kernel for each of the six languages. scripts/code-interpreter.sh puts the context together:
# bin/ (deno, gonb, goimports), go/ (the Go toolchain), kernels/ (deploy/kernels) and the settings that execd gives to IPython kernels, which
# those of a Jupyter Server need as well. npm and Go modules are fetched outside.
FROM sandbox/base:dev
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        git jupyter-server openjdk-17-jdk-headless procps \
        python3-ipykernel python3-jupyter-client python3-jupyter-server python3-matplotlib python3-numpy python3-pandas \
    && rm -rf /var/lib/apt/lists/*
COPY go /usr/local/go
COPY bin /usr/local/bin
COPY kernels/specs /usr/local/share/jupyter/kernels
COPY kernels/*.py kernels/*.java /usr/local/lib/sandbox-kernels/
COPY ipython_kernel_config.py /etc/ipython/
# The caches that the first cell would otherwise have to fill, readable and writable for whoever the sandbox's user is.
ENV LANG=C.UTF-8 \
    GOCACHE=/var/cache/go-build \
    GOFLAGS=-buildvcs=false \
    GOTOOLCHAIN=local \
    PYDEVD_DISABLE_FILE_VALIDATION=1 \
    MPLBACKEND=module://matplotlib_inline.backend_inline \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin
RUN javac -d /usr/local/lib/sandbox-kernels /usr/local/lib/sandbox-kernels/JShellHost.java \
    && python3 -m compileall -q /usr/local/lib/sandbox-kernels \
    && python3 /usr/local/lib/sandbox-kernels/check.py --warm \
    && chmod -R a+rwX /var/cache/go-build
CMD ["bash"]
