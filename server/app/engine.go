package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/docker"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci"
	"sandbox.internal/server/box"
	"sandbox.internal/server/config"
)

// keeperName is the program that the local engine starts containers with. It is installed beside
// this one.
const keeperName = "sandbox-keeper"

// openEngine returns what runs containers on this machine. The local engine takes up its containers
// with it; Docker is not asked yet.
func openEngine(ctx context.Context, cfg config.Config, logger zerolog.Logger) (engine.Engine, error) {
	switch cfg.Runtime.Type {
	case config.RuntimeDocker:
		opened, err := docker.New(docker.Options{
			Host: cfg.Environment.DockerHost, APITimeout: cfg.Docker.APITimeout.Duration(),
			InternalRegistries: cfg.Runtime.InternalRegistries, Bounded: box.Labels(cfg.Server.Instance), Logger: logger,
			ShareProcessors: !cfg.Docker.ConfineProcessors,
		})
		if err != nil {
			return nil, err // a nil pointer would be an engine that is not nil
		}
		return opened, nil
	case config.RuntimeLocal:
		return openLocal(ctx, cfg, logger)
	}
	return nil, fmt.Errorf("runtime.type %q has no container engine", cfg.Runtime.Type)
}

func openLocal(ctx context.Context, cfg config.Config, logger zerolog.Logger) (engine.Engine, error) {
	options, err := localOptions(cfg)
	if err != nil {
		return nil, err
	}
	options.Logger = logger
	opened, err := oci.Open(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("open the local engine: %w", err)
	}
	if err := loadArchives(ctx, opened.LoadArchive, cfg.Local.Archives); err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	return opened, nil
}

// loadArchives loads the images that came with this program, and then those of local.archives:
// where both have an image, it is that of the administrator.
func loadArchives(ctx context.Context, load func(context.Context, string) error, archives []string) error {
	installed, err := config.InstalledImages()
	if err != nil {
		return err
	}
	for _, archive := range installed {
		if err := load(ctx, archive); err != nil {
			return fmt.Errorf("image of the installation: %s: %w", archive, err)
		}
	}
	for _, archive := range archives {
		if err := load(ctx, archive); err != nil {
			return fmt.Errorf("local.archives: %s: %w", archive, err)
		}
	}
	return nil
}

func localOptions(cfg config.Config) (oci.Options, error) {
	keeper, err := cfg.Local.Keeper, error(nil)
	if keeper == "" {
		if keeper, err = findKeeper(); err != nil {
			return oci.Options{}, err
		}
	}
	options := oci.Options{
		Directory: filepath.Clean(cfg.Local.Directory(cfg.Server)), Keeper: keeper,
		Runtime: cfg.Local.OCIRuntime, Bridge: cfg.Local.Bridge, UserNamespaces: oci.UserNamespaces(cfg.Local.UserNamespaces),
		DiskBytes: cfg.Local.DiskMiB << 20, GPUKind: cfg.Local.GPUKind, KeepFiles: cfg.Local.KeepAcrossReboot,
		ShareProcessors: !cfg.Local.ConfineProcessors,
		Images: oci.ImageOptions{
			MaxBytes: cfg.Local.ImagesMiB << 20, Insecure: cfg.Local.InsecureRegistries, Internal: cfg.Runtime.InternalRegistries,
			Mirrors: map[string][]string{},
		},
	}
	for _, needed := range []string{cfg.Runtime.ExecdImage, cfg.Egress.Image} {
		if needed != "" {
			options.Images.Keep = append(options.Images.Keep, needed)
		}
	}
	for _, class := range cfg.Runtime.Classes {
		options.Runtimes = append(options.Runtimes, class.Handler)
	}
	for _, mirror := range cfg.Local.Mirrors {
		options.Images.Mirrors[mirror.Registry] = mirror.Hosts
	}
	if cfg.Local.Subnet != "" {
		if options.Subnet, err = netip.ParsePrefix(cfg.Local.Subnet); err != nil {
			return oci.Options{}, fmt.Errorf("local.subnet: %w", err)
		}
	}
	return options, nil
}

// findKeeper returns the path of the keeper's program beside this one.
func findKeeper() (string, error) {
	own, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the program %s: %w", keeperName, err)
	}
	path := filepath.Join(filepath.Dir(own), keeperName)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the program %s is missing: the local engine needs it; local.keeper can name another place", path)
	}
	return path, nil
}
