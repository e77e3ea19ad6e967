package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/runtime/oci/users"
)

// trialTimeout bounds a trial, which takes a tenth of a second.
const trialTimeout = 20 * time.Second

// trialName is that of the container of a trial; no other can be called so. One that a killed service has left is removed.
const trialName = ".trial"

// userNamespacesField is the field of the log that says what is known about user namespaces: available, missing or untried.
const userNamespacesField = "user_namespaces"

func (r *record) isTrial() bool { return r.Spec.Name == trialName }

// openUsers takes the ids for user namespaces.
func (e *Engine) openUsers() error {
	if e.options.UserNamespaces == UserNamespacesOff {
		e.noUsers = "local.user_namespaces is off"
		e.log.Info().Msg("user namespaces are switched off: root in a container is that of the host, without the capabilities")
		return nil
	}
	pool, err := users.Open(claims, e.layout.data, e.userNamespaceMakers())
	if err != nil && !passing(err) && e.options.UserNamespaces == UserNamespacesAuto {
		e.noUsers = err.Error()
		e.log.Warn().Err(err).Str(userNamespacesField, "missing").Msg("containers have no user namespaces: their root is that of the host, without the capabilities")
		return nil
	}
	if err != nil {
		return err
	}
	for _, c := range e.all() {
		if run := c.record.Run; run != nil && run.Users != 0 {
			pool.MarkTaken(run.Users)
		}
	}
	e.users = pool
	return nil
}

// userNamespaceMakers have the keeper make them.
func (e *Engine) userNamespaceMakers() users.Makers {
	return users.Makers{
		Mounts: func(ids []syscall.SysProcIDMap) (*os.File, error) {
			return e.keeper.UserNamespace(ids, 0) // the kernel lets its owner alone map the host's 0
		},
		Container: func(ids []syscall.SysProcIDMap, owner int) (*os.File, error) {
			return e.keeper.UserNamespace(ids, owner)
		},
	}
}

// proveUsers runs a container with a user namespace with every runtime that is configured.
func (e *Engine) proveUsers(ctx context.Context) error {
	if e.users == nil {
		return nil
	}
	e.runtimesMu.Lock()
	found := map[string]bundle.Runtime{}
	for _, runtime := range e.runtimes {
		found[runtime.Path] = runtime
	}
	e.runtimesMu.Unlock()
	for path, runtime := range found {
		if !runtime.MapsUsers {
			continue
		}
		err := e.tryUsers(ctx, runtime)
		var refused *refusal
		if err != nil && !errors.As(err, &refused) {
			err = e.tryUsers(ctx, runtime)
		}
		switch {
		case err == nil:
			e.log.Info().Str("runtime", path).Str(userNamespacesField, "available").Msg("containers have user namespaces")
		case ctx.Err() == nil && !errors.As(err, &refused):
			// Containers do without only where it is known that they must. If these must, they fail to start.
			e.log.Warn().Err(err).Str("runtime", path).Str(userNamespacesField, "untried").
				Msg("cannot try user namespaces: containers get them untried")
		case e.options.UserNamespaces == UserNamespacesOn, ctx.Err() != nil:
			return fmt.Errorf("containers of %s cannot have user namespaces: %w", path, err)
		default:
			e.hostUsers[path] = err.Error()
			e.log.Warn().Err(err).Str("runtime", path).Str(userNamespacesField, "missing").
				Msg("containers have no user namespaces: their root is that of the host, without the capabilities")
		}
	}
	return nil
}

// refusal is an error of a trial that says that the host cannot. Others, such as a full disk or a keeper that is killed, say nothing about that.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// passing reports whether an error may be gone the next time.
func passing(err error) bool {
	for _, cause := range []error{
		unix.ENOSPC, unix.EDQUOT, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EIO,
		engine.ErrUnavailable, context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}

// tryUsers runs a container like any other, from an image with one program: the keeper's, which prints how it is used.
func (e *Engine) tryUsers(ctx context.Context, runtime bundle.Runtime) (err error) {
	ctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	image, err := os.MkdirTemp(e.layout.data, ".trial-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(image)) }()
	layer, err := e.trialLayer(image)
	if err != nil {
		return err
	}
	c, err := e.makeTrial(runtime)
	if err != nil {
		return err
	}
	if err := c.take(ctx); err != nil {
		return err
	}
	defer c.release()
	defer func() {
		if err := e.remove(context.WithoutCancel(ctx), c); err != nil { // the next service tries again
			e.log.Warn().Err(err).Msg("the container that tried user namespaces cannot be removed")
		}
	}()
	return e.runTrial(ctx, e.newStart(c, images.Image{Layers: []string{layer}}, image, true))
}

// trialLayer makes the only layer of a trial's image in the folder.
func (e *Engine) trialLayer(image string) (string, error) {
	layer := filepath.Join(image, "layer")
	if err := os.Mkdir(layer, 0o755); err != nil { //nolint:gosec // the container's root
		return "", err
	}
	return layer, copyProgram(e.options.Keeper, filepath.Join(layer, "keeper"))
}

// makeTrial makes the container of a trial, with its record.
func (e *Engine) makeTrial(runtime bundle.Runtime) (*container, error) {
	e.forgetTrial() // one that could not be removed
	c, err := e.reserve(engine.ContainerSpec{
		Name: trialName, Runtime: runtime.Path, Network: engine.NetworkNone, Entrypoint: []string{"/keeper", "--help"},
	}, runtime)
	if err != nil {
		return nil, err
	}
	if err := e.keep(c); err != nil {
		e.forgetTrial()
		return nil, err
	}
	return c, nil
}

// forgetTrial makes the name of a trial's container free.
func (e *Engine) forgetTrial() {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.byName, trialName)
}

// runTrial runs the container of a trial to its end. The error is a *[refusal] if the host cannot.
func (e *Engine) runTrial(ctx context.Context, start *startOperation) error {
	if err := start.run(ctx); err != nil {
		if passing(err) || ctx.Err() != nil {
			return err
		}
		return &refusal{err}
	}
	c := start.container
	select {
	case <-c.ended:
	case <-ctx.Done():
		return fmt.Errorf("its program does not end: %w", ctx.Err())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch code := exitCode(*c.end); code {
	case 0:
		return nil
	case killedExitCode: // by the host, when memory is short
		return errors.New("its program was killed")
	default:
		return &refusal{fmt.Errorf("its program has ended with %d", code)}
	}
}

// copyProgram copies a program, for every user.
func copyProgram(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	if unix.IoctlFileClone(int(target.Fd()), int(source.Fd())) != nil {
		_, err = io.Copy(target, source)
	}
	return errors.Join(err, target.Chmod(0o755), target.Close())
}
