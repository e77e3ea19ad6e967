# The base image with Jupyter Server and a kernel for each of the six languages. scripts/code-interpreter.sh puts the context together:
# bin/ (deno, gonb, goimports), go/ (the Go toolchain), kernels/ (deploy/kernels) and the settings that execd gives to IPython kernels, which
# those of a Jupyter Server need as well. npm and Go modules are fetched outside.
FROM sandbox/base:dev
# Not unpacked: documentation (a package of Java needs the folder of one manual), translations, the tables that fonttools' own builds read,
# and what jlink alone takes of a JDK. The tests of Python packages are removed after the installation, which compiles them and fails where
# one is missing. A build that fails leaves no image, so dpkg need not sync every file.
# python3-munkres stands in for python3-scipy, as matplotlib's dependencies allow: scipy would bring two compilers and Boost, 560 MB.
RUN printf 'path-exclude=%s\n' '/usr/share/doc/*' '/usr/share/man/*' '/usr/share/info/*' '/usr/share/locale/*' '/usr/share/unicode/*' \
        '/usr/lib/jvm/*/jmods/*' >/etc/dpkg/dpkg.cfg.d/code-interpreter \
    && echo 'path-include=/usr/share/doc/*/copyright' >>/etc/dpkg/dpkg.cfg.d/code-interpreter \
    && mkdir -p /usr/share/man/man1 \
    && echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/unsafe-io \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        git jupyter-server libasm-java openjdk-17-jdk-headless procps python3-munkres \
        python3-ipykernel python3-jupyter-client python3-jupyter-server python3-matplotlib python3-numpy python3-pandas \
    && find /usr/lib/python3/dist-packages -type d -name tests -prune -exec rm -rf {} + \
    && rm -rf /etc/dpkg/dpkg.cfg.d/unsafe-io /var/cache/apt /var/lib/apt/lists/*
COPY go /usr/local/go
COPY bin /usr/local/bin
COPY kernels/specs /usr/local/share/jupyter/kernels
COPY kernels/*.py kernels/*.java /usr/local/lib/sandbox-kernels/
# The entrypoint that clients of OpenSandbox name.
COPY kernels/code-interpreter.sh /opt/code-interpreter/code-interpreter.sh
COPY ipython_kernel_config.py /etc/ipython/
# The caches that the first cell would otherwise have to fill, readable and writable for whoever the sandbox's user is.
ENV LANG=C.UTF-8 \
    GOCACHE=/var/cache/go-build \
    GOFLAGS=-buildvcs=false \
    GOTOOLCHAIN=local \
    PYDEVD_DISABLE_FILE_VALIDATION=1 \
    MPLBACKEND=module://matplotlib_inline.backend_inline \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin
RUN javac -cp /usr/share/java/asm.jar -d /usr/local/lib/sandbox-kernels /usr/local/lib/sandbox-kernels/*.java \
    && python3 -m compileall -q /usr/local/lib/sandbox-kernels \
    && python3 /usr/local/lib/sandbox-kernels/check.py --warm \
    && chmod -R a+rwX /var/cache/go-build
CMD ["bash"]
