// Command execd-init is process 1 of a sandbox. It runs the entrypoint, keeps execd running beside
// it, and ends with the entrypoint's status.
//
//	execd-init [flags of execd] -- entrypoint [arguments]
//	execd-init await [flags of execd]
//	execd-init idle
//	execd-init hold
//
// It listens on execd's port before anything else runs, and keeps the port while execd is started
// again. execd is the program of that name in its own directory. The status also goes to the open
// file that EXECD_EXIT_FD names. An entrypoint that has not ended EXECD_STOP_GRACE after a SIGTERM
// is killed; it gets the signal of EXECD_STOP_SIGNAL in its place.
//
// With the word await it runs nothing but an execd that waits for a claim (openapi/execd.yaml), and
// then is the first process of the sandbox that the claim describes: for containers that are
// started before it is known what for.
//
// With the word idle it does nothing until SIGTERM, SIGINT or SIGHUP: an entrypoint for images that
// have no program which waits. As the entrypoint of a sandbox it costs no process, because process
// 1 recognises itself.
//
// With the word hold it does the same: a network namespace that no sandbox has yet needs a process.
package main

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"sandbox.internal/internal/process"
	"sandbox.internal/internal/supervisor"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

const (
	// name is what this program is called in its messages.
	name = "execd-init"
	// idle is the word for doing nothing.
	idle = "idle"
	// longestPause bounds the pause before execd is started again: the sandbox's own code may kill
	// it as often as it likes.
	longestPause = 5 * time.Second
)

func main() { supervisor.Exit(name, func() int { return run(os.Args[1:]) }) }

func run(args []string) int {
	if len(args) == 1 && (args[0] == idle || args[0] == "hold") {
		wait()
		return 0
	}
	if len(args) > 0 && args[0] == await {
		return runAwait(args[1:])
	}
	flags, entrypoint, err := splitArgs(args)
	if err != nil {
		return fail(exitUsage, err)
	}
	settings, err := parse(flags)
	if err != nil {
		return fail(exitUsage, err)
	}
	if err := process.Shield(); err != nil {
		return fail(exitFailure, err)
	}
	correctHosts(hostsPath, ipv6Off)
	self, err := os.Executable()
	if err != nil {
		return fail(exitFailure, err)
	}
	listener, err := supervisor.Listen(settings.host, settings.port, "the port of execd")
	if err != nil {
		return fail(exitFailure, err)
	}
	state, err := supervisor.NewState()
	if err != nil {
		fail(exitFailure, errors.New("after a restart execd cannot find out whether the sandbox is frozen: "+err.Error()))
	}
	return supervisor.Run(supervisor.Options{
		Name:         name,
		Program:      append([]string{filepath.Join(filepath.Dir(self), "execd"), "serve"}, flags...),
		Prefix:       supervisor.PrefixExecd,
		Listener:     listener,
		State:        state,
		LongestPause: longestPause,
		Entrypoint:   entrypoint,
		Idle:         slices.Equal(entrypoint, []string{self, idle}),
		// The entrypoint could read the token from an execd that has not shielded itself yet.
		AwaitReady: true,
		StopSignal: settings.stopSignal,
		StopGrace:  settings.stopGrace,
		Grace:      settings.grace,
	})
}

// wait returns when the process is to end. As process 1 it would not get the signals otherwise.
func wait() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	<-ended
}

func fail(code int, err error) int {
	_, _ = os.Stderr.WriteString(name + ": " + err.Error() + "\n")
	return code
}
