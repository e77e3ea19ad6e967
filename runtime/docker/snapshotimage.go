package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/image"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/engine/registries"
)

// A snapshot is an image of the engine: the layers of the container's image, and one with what the
// container had written. The engine makes that layer by a commit. The image of the commit has the
// container's whole configuration, secrets of its environment included, so it is there for a
// moment only: another one is loaded that has the same layers, and the configuration of the
// container's own image. An archive to load needs no layer that the engine has.

const (
	// ownPrefix is that of the names of this package's labels, which callers do not see.
	ownPrefix = "sandbox.internal/docker-"
	// snapshotRepository has the images of snapshots, with the snapshots' names as tags. No
	// registry can have that name (RFC 2606), so no pull brings an image into it.
	snapshotRepository = "sandbox.invalid/snapshot"
	// removedRepository has the images of snapshots that were removed, until no container is made
	// of them any more.
	removedRepository = "sandbox.invalid/removed"
	// snapshotLabel is on images of snapshots: what is known of one, in JSON. On containers that
	// are made of such an image it is empty.
	snapshotLabel = ownPrefix + "snapshot"
	// commitLabel is on images of commits: the name of the snapshot that is being made.
	commitLabel = ownPrefix + "commit"
)

// kept is what the label of a snapshot's image has.
type kept struct {
	Name    string
	Labels  map[string]string
	Base    string      // the id of the image that the snapshot adds to
	Layers  []keptLayer // of the snapshot, on the image's
	Bytes   int64       // of the layer that its container has written; 0 for none
	Frozen  time.Duration
	Created time.Time
}

// keptLayer is a layer of a snapshot.
type keptLayer struct {
	Chain string // of the digests of this layer and all below it
	Bytes int64
}

// describe is the snapshot as if there were no other.
func (k kept) describe() engine.Snapshot {
	return engine.Snapshot{
		Name: k.Name, Labels: k.Labels, ImageID: k.Base, Bytes: k.Bytes, Exclusive: k.Bytes, Frozen: k.Frozen, Created: k.Created,
	}
}

// describeAll returns the snapshots, with what each has that no earlier one has.
func describeAll(all []kept) []engine.Snapshot {
	slices.SortFunc(all, func(a, b kept) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	known := map[string]bool{}
	list := make([]engine.Snapshot, len(all))
	for i, k := range all {
		list[i] = k.describe()
		list[i].Exclusive = 0
		for _, layer := range k.Layers {
			if !known[layer.Chain] {
				list[i].Exclusive += layer.Bytes
			}
			known[layer.Chain] = true
		}
	}
	return list
}

// chainOf returns what stands for layers, one on the other.
func chainOf(layers []string) string {
	sum := sha256.Sum256([]byte(strings.Join(layers, "\n")))
	return hex.EncodeToString(sum[:])
}

func snapshotRef(name string) string { return snapshotRepository + ":" + name }

// isSnapshots reports whether a name, as the engine has it, is one of images of snapshots.
func isSnapshots(ref string) bool {
	return strings.HasPrefix(ref, snapshotRepository+":") || strings.HasPrefix(ref, removedRepository+":")
}

// hidden reports whether an image belongs to a snapshot: it is none that a request can name. The
// labels alone do not say so, for any image can have them: one of a commit has no name, nor has one
// of a snapshot that lost it to another program.
func hidden(names, digests []string, labels map[string]string) bool {
	if slices.ContainsFunc(names, isSnapshots) {
		return true
	}
	pulled := slices.ContainsFunc(digests, func(digest string) bool { return !strings.HasPrefix(digest, "<none>@") })
	return len(named(names)) == 0 && !pulled && labels[snapshotLabel]+labels[commitLabel] != ""
}

// keptIn returns the snapshot of an image, which has a name that only images of snapshots have.
func keptIn(names []string, labels map[string]string) (k kept, ok bool) {
	if !slices.ContainsFunc(names, isSnapshots) || json.Unmarshal([]byte(labels[snapshotLabel]), &k) != nil {
		return kept{}, false
	}
	return k, k.Name != "" && k.Base != ""
}

func labelsOf(found image.InspectResponse) map[string]string {
	if found.Config == nil {
		return nil
	}
	return found.Config.Labels
}

// findSnapshot returns the snapshot of the name and its image.
func (e *Engine) findSnapshot(ctx context.Context, name string) (kept, image.InspectResponse, error) {
	if !snapshotNames.MatchString(name) {
		return kept{}, image.InspectResponse{}, fmt.Errorf("%w: %.200q", engine.ErrNoSnapshot, name)
	}
	found, err := e.inspectAnyImage(ctx, snapshotRef(name))
	if errors.Is(err, engine.ErrImage) {
		return kept{}, found, fmt.Errorf("%w: %s", engine.ErrNoSnapshot, name)
	}
	if err != nil {
		return kept{}, found, err
	}
	k, ok := keptIn(found.RepoTags, labelsOf(found))
	if !ok || k.Name != name {
		return k, found, fmt.Errorf("%w: the image %s is none", engine.ErrNoSnapshot, snapshotRef(name))
	}
	return k, found, nil
}

// imageConfig is the configuration of an image, as archives have it.
type imageConfig struct {
	Created      time.Time      `json:"created"`
	Architecture string         `json:"architecture"`
	Variant      string         `json:"variant,omitempty"`
	OS           string         `json:"os"`
	Config       any            `json:"config"`
	RootFS       imageLayers    `json:"rootfs"`
	History      []imageHistory `json:"history"`
}

type imageLayers struct {
	Type  string   `json:"type"`
	Diffs []string `json:"diff_ids"`
}

type imageHistory struct {
	Created time.Time `json:"created"`
	By      string    `json:"created_by"`
}

// loadLayers makes an image of layers that the engine has, under the name, with the configuration
// of another image and the labels, and returns its id.
func (e *Engine) loadLayers(ctx context.Context, ref string, layers []string, of image.InspectResponse, created time.Time, labels map[string]string) (id string, err error) {
	config := imageConfig{
		Created: created, Architecture: of.Architecture, Variant: of.Variant, OS: of.Os, RootFS: imageLayers{"layers", layers},
	}
	if of.Config != nil {
		own := *of.Config
		own.Labels = maps.Clone(own.Labels)
		delete(own.Labels, snapshotLabel)
		if own.Labels == nil {
			own.Labels = map[string]string{}
		}
		maps.Copy(own.Labels, labels)
		config.Config = own
	} else {
		config.Config = map[string]any{"Labels": labels}
	}
	for range layers {
		config.History = append(config.History, imageHistory{created, "sandbox snapshot"})
	}
	archive, id, err := archiveOfImage(ref, config)
	if err != nil {
		return "", err
	}
	err = e.call(ctx, "make image "+ref, forImageLoad, func(ctx context.Context) error {
		_, err := e.load(ctx, archive)
		return err
	})
	if err != nil {
		return "", err
	}
	made, err := e.inspectAnyImage(ctx, ref)
	if err == nil && (made.ID != id || !slices.Equal(made.RootFS.Layers, layers)) {
		err = fmt.Errorf("make image %s: the engine has made another one, %s", ref, made.ID)
	}
	return id, err
}

// archiveOfImage is an archive to load, without the layers.
func archiveOfImage(ref string, config imageConfig) (archive *bytes.Buffer, id string, err error) {
	encoded, err := json.Marshal(config)
	if err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(encoded)
	digest := hex.EncodeToString(sum[:])
	paths := make([]string, len(config.RootFS.Diffs))
	for i, layer := range config.RootFS.Diffs {
		paths[i] = strings.ReplaceAll(layer, ":", "-") + "/layer.tar"
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": digest + ".json", "RepoTags": []string{ref}, "Layers": paths}})
	if err != nil {
		return nil, "", err
	}
	archive = &bytes.Buffer{}
	w := tar.NewWriter(archive)
	for _, file := range []struct {
		name    string
		content []byte
	}{{digest + ".json", encoded}, {"manifest.json", manifest}} {
		header := tar.Header{Typeflag: tar.TypeReg, Name: file.name, Mode: 0o644, Size: int64(len(file.content))}
		if err := w.WriteHeader(&header); err != nil {
			return nil, "", err
		}
		if _, err := w.Write(file.content); err != nil {
			return nil, "", err
		}
	}
	return archive, "sha256:" + digest, w.Close()
}

// inspectImage returns an image that a request may name. Those of snapshots are none.
func (e *Engine) inspectImage(ctx context.Context, ref string) (image.InspectResponse, error) {
	found, err := e.inspectAnyImage(ctx, ref)
	if err == nil && hidden(found.RepoTags, found.RepoDigests, labelsOf(found)) {
		return image.InspectResponse{}, fmt.Errorf("look for image %s: %w: it is one of a snapshot", ref, engine.ErrImage)
	}
	return found, err
}

// inspectAnyImage returns the image with the name or id.
func (e *Engine) inspectAnyImage(ctx context.Context, ref string) (found image.InspectResponse, err error) {
	err = e.call(ctx, "look for image "+ref, meaning{notFound: engine.ErrImage, invalid: engine.ErrImage},
		func(ctx context.Context) (err error) {
			found, err = e.api.ImageInspect(ctx, ref)
			return err
		})
	return found, err
}

// reserved reports whether a request has named an image of a snapshot.
func reserved(ref string) bool {
	name, err := registries.Parse(ref)
	return err == nil && (name.Repository == snapshotRepository || name.Repository == removedRepository)
}
