// Command push puts the images and the chart of a release into a registry.
//
//	push REGISTRY ARCHIVE...
//
// The archives are those of one version for Linux, one for each architecture. REGISTRY is what the
// names begin with, such as registry.example.org/sandbox: images become REGISTRY/NAME:VERSION, the
// chart REGISTRY/charts/sandbox:VERSION, with these images as its values. Credentials are those of
// Docker's configuration. The same archives make the same digests.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: push REGISTRY ARCHIVE...")
		os.Exit(2)
	}
	if err := push(ctx, os.Stdout, os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "push: %v\n", err)
		os.Exit(1)
	}
}

// push puts what the archives have into the registry, and prints each reference with its digest.
func push(ctx context.Context, out io.Writer, registry string, archives []string) error {
	var releases []*release
	for _, path := range archives {
		r, err := open(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if len(releases) > 0 && r.version != releases[0].version {
			return fmt.Errorf("%s has the version %s, and %s has %s", path, r.version, archives[0], releases[0].version)
		}
		if slices.ContainsFunc(releases, func(other *release) bool { return other.architecture == r.architecture }) {
			return fmt.Errorf("%s is the second archive for %s", path, r.architecture)
		}
		releases = append(releases, r)
	}
	tag := tagOf(releases[0].version)
	for _, image := range imageNames {
		target, err := name.NewTag(registry + "/" + image + ":" + tag)
		if err != nil {
			return err
		}
		index, err := indexOf(image, releases)
		if err != nil {
			return fmt.Errorf("image %s: %w", image, err)
		}
		if err := remote.WriteIndex(target, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("push %s: %w", target, err)
		}
		if err := report(out, target, index); err != nil {
			return err
		}
	}
	target, err := name.NewTag(registry + "/charts/sandbox:" + tag)
	if err != nil {
		return err
	}
	packed, err := chartOf(releases[0], registry)
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	if err := remote.Write(target, packed, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return fmt.Errorf("push %s: %w", target, err)
	}
	return report(out, target, packed)
}

// tagOf returns the tag of a version: tags have no "+", and versions of charts no "v".
func tagOf(version string) string {
	return strings.ReplaceAll(strings.TrimPrefix(version, "v"), "+", "_")
}

func report(out io.Writer, target name.Tag, pushed interface{ Digest() (v1.Hash, error) }) error {
	digest, err := pushed.Digest()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s@%s\n", target, digest)
	return err
}

// indexOf returns the index of an image, with what each of the releases has for its architecture.
func indexOf(image string, releases []*release) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.DockerManifestList)
	for _, r := range releases {
		made, err := r.image(image)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: made, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: r.architecture}},
		})
	}
	return index, nil
}
