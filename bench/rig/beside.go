package rig

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"sandbox.internal/bench/measure"
)

// Beside is a service beside the client of a Docker Engine, which is the floor of its sandboxes.
type Beside struct {
	*Service
	Engine *Engine
}

// OnDocker starts a service on a Docker Engine, with a piece of configuration of its own, and
// removes what it leaves.
func OnDocker(config string) func(context.Context, *measure.Run, func(Beside) error) error {
	return func(ctx context.Context, run *measure.Run, do func(Beside) error) (err error) {
		engine, err := OpenEngine(ctx)
		if err != nil {
			return err
		}
		s, err := StartService(ctx, run, config)
		if err != nil {
			return err
		}
		defer func() {
			s.Stop()
			err = errors.Join(err, engine.Clean(ctx, Label, "sandbox.internal/instance="+s.Instance))
		}()
		return do(Beside{s, engine})
	}
}

// OnLocal starts a service with the local engine and an OCI runtime, beside a client of Docker's,
// and removes what they leave.
func OnLocal(runtime string, p Plan) func(context.Context, *measure.Run, func(Beside) error) error {
	return func(ctx context.Context, run *measure.Run, do func(Beside) error) (err error) {
		engine, err := OpenEngine(ctx)
		if err != nil {
			return err
		}
		archives, err := ArchiveDirectory()
		if err != nil {
			return err
		}
		local := p
		local.runtime = "local"
		local.More += fmt.Sprintf("\n[local]\noci_runtime = %q\nbridge = \"sbench\"\narchives = [%q, %q]\n", runtime,
			filepath.Join(archives, "execd.tar"), filepath.Join(archives, "base.tar"))
		s, err := startPlanned(ctx, run, local)
		if err != nil {
			return err
		}
		defer func() {
			err = errors.Join(err, s.deleteAll(context.WithoutCancel(ctx)), engine.Clean(context.WithoutCancel(ctx), Label))
			s.Stop()
		}()
		return do(Beside{s, engine})
	}
}

// ArchiveDirectory is where scripts/images.sh --archives leaves its files.
func ArchiveDirectory() (string, error) {
	if cache := os.Getenv("SANDBOX_CACHE"); cache != "" {
		return filepath.Join(cache, "archives"), nil
	}
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "sandbox", "archives"), err
}

// deleteAll deletes every sandbox.
func (s *Service) deleteAll(ctx context.Context) error {
	var page struct {
		Items []struct {
			ID     string
			Status Status
		}
	}
	if err := s.Call(ctx, http.MethodGet, "/v1/sandboxes?pageSize=1000", http.StatusOK, nil, &page); err != nil {
		return err
	}
	return measure.Concurrently(ctx, len(page.Items), func(ctx context.Context, i int) error {
		if state := page.Items[i].Status.State; state == "Terminated" || state == "Failed" {
			return nil
		}
		return s.Delete(ctx, page.Items[i].ID)
	})
}
