package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/runtime/oci/internal/containers"
)

// testTimeout bounds a test of user namespaces, which takes a tenth of a second.
const testTimeout = 20 * time.Second

// testPattern is that of the names of directories that this package tests the host with. What a
// killed service has left is swept.
const testPattern = ".trial-"

// testUserNamespace runs a container like any other, from an image with one program: the keeper's,
// which prints how it is used. The error is a [*refusal] if the host cannot have user namespaces.
func (l *launcher) testUserNamespace(ctx context.Context, program string, runtime bundle.Runtime) (err error) {
	ctx, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	image, err := os.MkdirTemp(l.layout.Data, testPattern)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(image)) }()
	layer := filepath.Join(image, "layer")
	if err := os.Mkdir(layer, 0o755); err != nil { //nolint:gosec // the container's root
		return err
	}
	if err := copyProgram(program, filepath.Join(layer, "keeper")); err != nil {
		return err
	}
	c, err := l.addTestContainer(runtime)
	if err != nil {
		return err
	}
	if err := c.Lock(ctx); err != nil {
		return err
	}
	defer c.Unlock()
	defer func() {
		if err := l.remove(context.WithoutCancel(ctx), c); err != nil {
			l.log.Warn().Err(err).Msg("cannot remove the container that tested user namespaces; retried at service start")
		}
	}()
	s := &start{
		launcher: l, container: c, spec: c.Record().Spec, image: images.Image{Layers: []string{layer}}, imagesIn: image, test: true,
	}
	return s.runTest(ctx)
}

// addTestContainer adds the container of a test.
func (l *launcher) addTestContainer(runtime bundle.Runtime) (*containers.Container, error) {
	l.containers.DropTest() // one that could not be removed
	c, err := l.containers.Reserve(containers.TestSpec(engine.ContainerSpec{
		Runtime: runtime.Path, Network: engine.NetworkNone, Entrypoint: []string{"/keeper", "--help"},
	}), runtime.Path, nil)
	if err != nil {
		return nil, err
	}
	if err := l.containers.Add(c); err != nil {
		l.containers.Drop(c)
		return nil, err
	}
	return c, nil
}

// runTest runs the container of a test to its end. The error is a *[refusal] if the host cannot.
func (s *start) runTest(ctx context.Context) error {
	if err := s.run(ctx); err != nil {
		if temporary(err) || ctx.Err() != nil {
			return err
		}
		return &refusal{err}
	}
	select {
	case <-s.container.Ended():
	case <-ctx.Done():
		return fmt.Errorf("test program does not end: %w", ctx.Err())
	}
	switch code := s.container.Describe().ExitCode; code {
	case 0:
		return nil
	case containers.KilledExitCode: // by the host, when memory is short
		return errors.New("test program was killed")
	default:
		return &refusal{fmt.Errorf("test program has ended with %d", code)}
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
