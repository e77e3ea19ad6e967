package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
)

// beside is a service beside the client of a Docker Engine, which is the floor of its sandboxes.
type beside struct {
	*service
	engine *engine
}

// onDocker starts a service on a Docker Engine, with a piece of configuration of its own, and
// removes what it leaves.
func onDocker(config string) func(context.Context, *bench, func(beside) error) error {
	return func(ctx context.Context, run *bench, do func(beside) error) (err error) {
		engine, err := openEngine(ctx)
		if err != nil {
			return err
		}
		s, err := startService(ctx, run, config)
		if err != nil {
			return err
		}
		defer func() {
			s.stop()
			err = errors.Join(err, engine.clean(ctx, label, "sandbox.internal/instance="+s.instance))
		}()
		return do(beside{s, engine})
	}
}

// onLocal starts a service with the local engine and an OCI runtime, beside a client of Docker's,
// and removes what they leave.
func onLocal(runtime string, p plan) func(context.Context, *bench, func(beside) error) error {
	return func(ctx context.Context, run *bench, do func(beside) error) (err error) {
		engine, err := openEngine(ctx)
		if err != nil {
			return err
		}
		archives, err := archiveDirectory()
		if err != nil {
			return err
		}
		local := p
		local.runtime = "local"
		local.more += fmt.Sprintf("\n[local]\noci_runtime = %q\nbridge = \"sbench\"\narchives = [%q, %q]\n", runtime,
			filepath.Join(archives, "execd.tar"), filepath.Join(archives, "base.tar"))
		s, err := startPlanned(ctx, run, local)
		if err != nil {
			return err
		}
		defer func() {
			err = errors.Join(err, s.deleteAll(context.WithoutCancel(ctx)), engine.clean(context.WithoutCancel(ctx), label))
			s.stop()
		}()
		return do(beside{s, engine})
	}
}

// archiveDirectory is where scripts/images.sh --archives leaves its files.
func archiveDirectory() (string, error) {
	if cache := os.Getenv("SANDBOX_CACHE"); cache != "" {
		return filepath.Join(cache, "archives"), nil
	}
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "sandbox", "archives"), err
}

// deleteAll deletes every sandbox.
func (s *service) deleteAll(ctx context.Context) error {
	var page struct {
		Items []struct {
			ID     string
			Status status
		}
	}
	if err := s.call(ctx, http.MethodGet, "/v1/sandboxes?pageSize=1000", http.StatusOK, nil, &page); err != nil {
		return err
	}
	return concurrently(ctx, len(page.Items), func(ctx context.Context, i int) error {
		if state := page.Items[i].Status.State; state == "Terminated" || state == "Failed" {
			return nil
		}
		return s.delete(ctx, page.Items[i].ID)
	})
}
