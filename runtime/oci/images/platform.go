package images

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// maxIndexDepth is how many indexes may lie in one another; deep ones are hostile.
	maxIndexDepth = 4
	// maxCandidates is how many manifests of an index are tried.
	maxCandidates = 16
)

// errNoImage is what a manifest of an index fails with that is no image for this machine: the next
// one is tried.
var errNoImage = errors.New("no image for linux/" + runtime.GOARCH)

// baseVariants are the variants of an architecture that run on every machine of it, the best first,
// as Docker knows them.
var baseVariants = map[string][]string{
	"amd64": {"", "v1"},
	"arm64": {"", "v8"},
	"arm":   {"v7", "", "v6", "v5"},
}

// architectures are names that tools use beside those of Go.
var architectures = map[string]string{"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64"}

// rank returns the place of a platform among those of this machine, 0 for the best; false when it
// is another one's. Variants that only some machines run are the last, in their order.
func rank(p *v1.Platform) (int, bool) {
	architecture := strings.ToLower(p.Architecture)
	architecture = cmp.Or(architectures[architecture], architecture)
	if strings.ToLower(p.OS) != "linux" || architecture != runtime.GOARCH {
		return 0, false
	}
	known := baseVariants[architecture]
	if at := slices.Index(known, strings.ToLower(p.Variant)); at >= 0 {
		return at, true
	}
	return len(known), true
}

func hasNoPlatform(p *v1.Platform) bool { return p == nil || p.OS == "" && p.Architecture == "" }

// fits reports whether something for the platform may run here. What names none may.
func fits(p *v1.Platform) bool {
	if hasNoPlatform(p) {
		return true
	}
	_, ours := rank(p)
	return ours
}

// isArtifact reports whether a descriptor says that it is of something else than an image: a
// signature, a list of what is in one. Of images, some tools give the media type of the
// configuration as the type of an artifact.
func isArtifact(d v1.Descriptor) bool {
	return !isConfig(types.MediaType(d.ArtifactType)) || d.Annotations["vnd.docker.reference.type"] != "" ||
		d.MediaType != "" && !d.MediaType.IsImage() && !d.MediaType.IsIndex()
}

// candidates returns the manifests of an index that may be an image for this machine, the best
// first; those that name no platform are last.
func candidates(manifests []v1.Descriptor) []v1.Descriptor {
	var found []v1.Descriptor
	for _, d := range manifests {
		if !isArtifact(d) && fits(d.Platform) {
			found = append(found, d)
		}
	}
	slices.SortStableFunc(found, compare)
	return found[:min(len(found), maxCandidates)]
}

// compare orders descriptors that fit.
func compare(a, b v1.Descriptor) int {
	place := func(d v1.Descriptor) (int, string) {
		if hasNoPlatform(d.Platform) {
			return 1000, ""
		}
		at, _ := rank(d.Platform)
		return at, d.Platform.Variant
	}
	placeA, variantA := place(a)
	placeB, variantB := place(b)
	return cmp.Or(cmp.Compare(placeA, placeB), cmp.Compare(variantA, variantB))
}

// firstImage returns the first of the index's candidates that read returns an image of.
func firstImage(manifests []v1.Descriptor, read func(v1.Descriptor) (*parts, error)) (*parts, error) {
	for _, d := range candidates(manifests) {
		p, err := read(d)
		if err == nil && hasNoPlatform(d.Platform) && !p.config.isForHere() {
			continue
		}
		if !errors.Is(err, errNoImage) {
			return p, err
		}
	}
	return nil, fmt.Errorf("the index has %w", errNoImage)
}

// configTypes are the media types of configurations of images. Some tools name none.
var configTypes = []types.MediaType{"", types.OCIConfigJSON, types.DockerConfigJSON, "application/octet-stream", "application/json"}

func isConfig(t types.MediaType) bool { return slices.Contains(configTypes, t) }

// checkImage returns errNoImage for a manifest of an index that is one of an artifact.
func checkImage(artifactType string, config types.MediaType) error {
	if !isConfig(types.MediaType(artifactType)) || !isConfig(config) {
		return fmt.Errorf("%w: the manifest is that of an artifact", errNoImage)
	}
	return nil
}

// isForHere reports whether the configuration names this machine's architecture, or none.
func (c *configFile) isForHere() bool {
	return fits(&v1.Platform{OS: cmp.Or(c.OS, "linux"), Architecture: cmp.Or(c.Architecture, runtime.GOARCH)})
}
