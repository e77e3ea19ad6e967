// The process that holds a pod's namespaces: it does nothing but wait, and reaps what is orphaned where the pod shares its processes.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { _exit(0); }

static void reap(int signal) {
	while (waitpid(-1, 0, WNOHANG) > 0) {
	}
}

int main(void) {
	signal(SIGINT, end);
	signal(SIGTERM, end);
	struct sigaction children = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
	sigaction(SIGCHLD, &children, 0);
	for (;;) pause();
}
