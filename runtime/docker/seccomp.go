package docker

import (
	"context"
	"strings"

	"github.com/docker/docker/api/types/system"

	"sandbox.internal/runtime/internal/profile"
)

// defaultSeccomp returns the seccomp profile of a container whose spec names none, "" for the
// engine's own.
func (e *Engine) defaultSeccomp(ctx context.Context) (string, error) {
	if known := e.seccomp.Load(); known != nil {
		return *known, nil
	}
	var info system.Info
	err := e.call(ctx, "ask the engine for its profiles", forEngine, func(ctx context.Context) (err error) {
		info, err = e.api.Info(ctx)
		return err
	})
	if err != nil {
		return "", err
	}
	e.learnMachine(info)
	return e.chooseSeccomp(info.SecurityOptions)
}

// chooseSeccomp decides on the profile by the engine's security options, and keeps that. Engines'
// built-in profiles permit families of sockets that have led into the kernel, each release others;
// a profile that the administrator has given to the engine is left alone, and one without seccomp
// refuses every other.
func (e *Engine) chooseSeccomp(options []string) (string, error) {
	chosen := ""
	if replaceable(options) {
		text, err := profile.JSON()
		if err != nil {
			return "", err
		}
		chosen = text
	}
	e.seccomp.Store(&chosen)
	return chosen, nil
}

// replaceable reports whether an engine has seccomp and no profile of the administrator's:
// "name=seccomp,profile=default" (20.10), "=builtin" or, when it is switched off, "=unconfined".
func replaceable(options []string) bool {
	for _, option := range options {
		name, attributes, _ := strings.Cut(option, ",")
		if strings.TrimPrefix(name, "name=") != "seccomp" {
			continue
		}
		switch strings.TrimPrefix(attributes, "profile=") {
		case "", "default", "builtin", "unconfined":
			return true
		}
	}
	return false
}
