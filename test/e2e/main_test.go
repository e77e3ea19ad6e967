package e2e_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"sandbox.internal/runtime/docker"
	"sandbox.internal/test/e2e/conformance"
)

const (
	baseImage    = "sandbox/base:dev"
	busyboxImage = "sandbox/busybox:dev"
	execdImage   = "sandbox/execd:dev"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if err := prepare(); err != nil {
		fmt.Fprintf(os.Stderr,
			"e2e: %v\ne2e: these tests need a Docker Engine and the images of this repository; run: make images\n", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		conformance.RemoveBuilt()
		if err := removePushed(); err != nil {
			fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
			code = max(code, 1)
		}
		os.Exit(code)
	}))
}

// prepare proves that the engine answers and has the images.
func prepare() error {
	if err := errors.Join(overlap(), steady()); err != nil {
		return err
	}
	engine, err := docker.New(docker.Options{Host: os.Getenv("DOCKER_HOST"), Logger: zerolog.Nop()})
	if err != nil {
		return err
	}
	defer engine.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, image := range []string{execdImage, busyboxImage, baseImage} {
		if _, err := engine.EnsureImage(ctx, image, nil, nil); err != nil {
			return fmt.Errorf("image %s: %w", image, err)
		}
	}
	return nil
}

// overlap runs more tests at the same time than there are processors, unless the command line
// says how many: most of the time they wait for the engine or for a clock.
func overlap() error {
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if chosen {
		return nil
	}
	return flag.Set("test.parallel", "8")
}
