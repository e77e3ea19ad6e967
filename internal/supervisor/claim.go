package supervisor

import (
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"sandbox.internal/internal/process"
)

// Claim says what a container is for that was started before that was known.
type Claim struct {
	// Entrypoint is the command line, which is not empty.
	Entrypoint []string
	// Env has variables, as os.Environ writes them, that take the place of those of the container.
	Env []string
}

// errNoClaim: the program has ended with status 0 and has left no claim.
var errNoClaim = errors.New("the program has ended without a claim")

// AwaitClaim runs the program until it has ended, once: with status 0 it has left a claim with
// [DeliverClaim], which is returned. Else the container is to end with the status that is returned,
// and claim is nil: what failed while it waited is replaced by another container. Options.State is
// set by AwaitClaim, and Entrypoint is not looked at. A signal that ends containers ends the
// program; the status is 0 then.
//
// As with [Run], nothing else in the process may call signal.Notify or wait for a child.
func AwaitClaim(o Options) (claim *Claim, status int) {
	var err error
	if o.State, err = NewState(); err != nil {
		o.say(err.Error())
		return nil, exitFailure
	}
	s := &supervisor{Options: o, signals: notify()}
	defer s.signals.stop()
	if !s.startProgram() {
		return nil, exitFailure
	}
	for s.program.pid != 0 {
		select {
		case sig := <-s.signals.forward:
			s.stopping = true
			o.say("ends before it was claimed: " + sig.String())
			s.stopProgram()
		case <-s.signals.children:
			s.reap()
		}
	}
	switch status := process.ExitCode(s.program.status); {
	case s.stopping:
		return nil, 0
	case status != 0:
		return nil, status
	}
	read, err := readClaim(o.State)
	if err != nil {
		o.say(err.Error())
		return nil, exitFailure
	}
	return &read, 0
}

// DeliverClaim leaves a claim to [AwaitClaim], for the program that it runs: that program ends with
// status 0 then. Prefix is Options.Prefix.
func DeliverClaim(prefix string, claim Claim) error {
	file, err := State(prefix)
	switch {
	case err != nil:
		return err
	case file == nil:
		return errors.New("deliver a claim: this process was not started by execd-init await")
	}
	defer file.Close()
	var text strings.Builder
	for _, list := range [][]string{claim.Entrypoint, claim.Env} {
		text.WriteString(strconv.Itoa(len(list)) + "\x00")
		for _, word := range list {
			if strings.ContainsRune(word, 0) {
				return errors.New("a word of a claim must not contain a NUL byte")
			}
			text.WriteString(word + "\x00")
		}
	}
	_, err = file.WriteString(text.String())
	return err
}

// readClaim reads what DeliverClaim has written.
func readClaim(file *os.File) (Claim, error) {
	text, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<62))
	if err != nil {
		return Claim{}, err
	}
	rest := string(text)
	var lists [2][]string
	for i := range lists {
		var word string
		var found bool
		if word, rest, found = strings.Cut(rest, "\x00"); !found {
			return Claim{}, errNoClaim
		}
		count, err := strconv.Atoi(word)
		if err != nil {
			return Claim{}, errNoClaim
		}
		for range count {
			if word, rest, found = strings.Cut(rest, "\x00"); !found {
				return Claim{}, errNoClaim
			}
			lists[i] = append(lists[i], word)
		}
	}
	if len(lists[0]) == 0 || rest != "" {
		return Claim{}, errNoClaim
	}
	return Claim{Entrypoint: lists[0], Env: lists[1]}, nil
}

// Environ returns the environment of a container with the claim's variables, each once.
func (c Claim) Environ(container []string) []string {
	given := make(map[string]bool, len(c.Env))
	for _, entry := range c.Env {
		name, _, _ := strings.Cut(entry, "=")
		given[name] = true
	}
	kept := slices.DeleteFunc(slices.Clone(container), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return given[name]
	})
	return append(kept, c.Env...)
}
