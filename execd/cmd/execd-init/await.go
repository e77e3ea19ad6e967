package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"sandbox.internal/internal/process"
	"sandbox.internal/internal/supervisor"
)

// await is the word for waiting for a claim.
const await = "await"

// quiet makes execd write warnings alone, as the lifecycle service does for a sandbox with a
// container of its own, unless logFileVariable names a file for the log.
const (
	quiet           = "--log-level=4"
	logFileVariable = "EXECD_LOG_FILE"
)

// runAwait runs an execd that waits for a claim, and then is replaced by what this program is with
// the claim's entrypoint and environment: the sandbox differs in nothing from one that was started
// so. It returns only when the container is to end.
func runAwait(flags []string) int {
	settings, err := parse(flags)
	if err != nil {
		return fail(exitUsage, err)
	}
	if slices.Contains(flags, "--") {
		return fail(exitUsage, errors.New("usage: execd-init await [flags of execd]: the claim has the entrypoint"))
	}
	if err := process.Shield(); err != nil {
		return fail(exitFailure, err)
	}
	self, err := os.Executable()
	if err != nil {
		return fail(exitFailure, err)
	}
	listener, err := supervisor.Listen(settings.host, settings.port, "the port of execd")
	if err != nil {
		return fail(exitFailure, err)
	}
	claim, status := supervisor.AwaitClaim(supervisor.Options{
		Name:     name,
		Program:  append([]string{filepath.Join(filepath.Dir(self), "execd"), await}, flags...),
		Prefix:   supervisor.PrefixExecd,
		Listener: listener,
	})
	if claim == nil {
		return status
	}
	if !slices.ContainsFunc(claim.Env, func(entry string) bool { return strings.HasPrefix(entry, logFileVariable+"=") }) {
		flags = append([]string{quiet}, flags...) // of two the last one counts
	}
	line := slices.Concat([]string{self}, flags, []string{"--"}, claim.Entrypoint)
	return fail(exitFailure, errors.New("cannot become the sandbox: "+syscall.Exec(self, line, claim.Environ(os.Environ())).Error()))
}
