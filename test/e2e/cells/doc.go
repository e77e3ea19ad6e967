// Package cells holds one table of tests about code: what a cell may rely on, in every language,
// whichever way execd reaches its kernels.
//
// Python is tested with execd in the test's own process, against the kernels of this machine. Every
// language is tested in real sandboxes of sandbox/code-interpreter:dev. Both with kernels that
// execd starts itself, and with those of a real Jupyter Server: the former on the local engine,
// unless -engine chooses Docker, the latter on Docker.
//
// A Docker Engine and the images must be there (make images code-interpreter), and on this machine
// jupyter-server (scripts/kernels.sh).
package cells
