package images

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/distribution/reference"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandbox.internal/runtime/engine"
)

// Extend makes an image of another one, the base, with one more layer, and gives the image the
// name, which may be that of a third one. The layer is the tar archive that write writes; Extend
// calls write twice, for the same bytes. The configuration of the base stays as it is.
//
// Extend returns [engine.ErrInvalid] for a name that images cannot have, [engine.ErrImage] for a
// layer that is refused, and errors of write as they are. No image has the name then.
func (s *Store) Extend(ctx context.Context, base, ref string, created time.Time, write func(context.Context, io.Writer) error) (Image, error) {
	name, err := newName(ref)
	if err != nil {
		return Image{}, err
	}
	_, release, err := s.Hold(base)
	if err != nil {
		return Image{}, err
	}
	defer release()
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return Image{}, err
	}
	defer done()
	sum := sha256.New()
	sized := &countingWriter{to: sum}
	if err := write(ctx, sized); err != nil {
		return Image{}, err
	}
	layer := v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", sum.Sum(nil))}
	p, err := s.extended(base, layer, sized.bytes, created, write)
	if err != nil {
		return Image{}, describeError(ctx, "make image "+ref, err)
	}
	unpin, err := s.obtainAll(ctx, p, newMeter("exporting", func(string) {}))
	if err != nil {
		return Image{}, describeError(ctx, "make image "+ref, err)
	}
	defer unpin()
	added, err := s.add(ctx, []wanted{{parts: p, names: []string{name}}}, true)
	if err != nil {
		return Image{}, describeError(ctx, "make image "+ref, err)
	}
	return added[0], nil
}

// newName returns the full name for an image that no registry has.
func newName(ref string) (string, error) {
	name, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("%w: name %.200q of an image: %w", engine.ErrInvalid, ref, err)
	}
	if _, ok := name.(reference.Digested); ok {
		return "", fmt.Errorf("%w: name %.200q of an image: a new image has a tag, not a digest", engine.ErrInvalid, ref)
	}
	return name.String(), nil
}

// extended returns the parts of the base with one more layer.
func (s *Store) extended(base string, layer v1.Hash, size int64, created time.Time, write func(context.Context, io.Writer) error) (*parts, error) {
	raw, err := os.ReadFile(s.image(base))
	if err != nil {
		return nil, err
	}
	config, err := extendConfig(raw, layer, created)
	if err != nil {
		return nil, err
	}
	before, err := parseConfig(raw)
	if err != nil {
		return nil, err
	}
	// The base is held, so its layers are here, and are not read.
	blobs := make([]blob, len(before.RootFS.DiffIDs), len(before.RootFS.DiffIDs)+1)
	for i := range blobs {
		blobs[i].open = func(context.Context, func() bool) (io.ReadCloser, error) {
			return nil, errors.New("a layer of the image was removed")
		}
	}
	return newParts(config, append(blobs, blob{size: size, open: func(ctx context.Context, _ func() bool) (io.ReadCloser, error) {
		from, into := io.Pipe()
		go func() { _ = into.CloseWithError(write(ctx, into)) }() // ends with the reader
		return from, nil
	}}))
}

// extendConfig adds a layer to the configuration of an image, and leaves everything else as it is.
func extendConfig(raw []byte, layer v1.Hash, created time.Time) ([]byte, error) {
	config, rootFS := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &config); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(config["rootfs"], &rootFS); err != nil {
		return nil, err
	}
	var diffIDs, history []json.RawMessage
	if err := json.Unmarshal(rootFS["diff_ids"], &diffIDs); err != nil {
		return nil, err
	}
	if old := config["history"]; old != nil {
		if err := json.Unmarshal(old, &history); err != nil {
			return nil, err
		}
	}
	step := map[string]any{"created": created.UTC(), "created_by": "export of a snapshot"}
	for _, set := range []struct {
		in    map[string]json.RawMessage
		field string
		value any
	}{
		{rootFS, "diff_ids", append(diffIDs, json.RawMessage(`"`+layer.String()+`"`))},
		{config, "rootfs", rootFS}, {config, "created", created.UTC()}, {config, "history", append(history, mustJSON(step))},
	} {
		set.in[set.field] = mustJSON(set.value)
	}
	return json.Marshal(config)
}

// mustJSON encodes what can always be encoded.
func mustJSON(value any) json.RawMessage {
	content, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return content
}

type countingWriter struct {
	to    io.Writer
	bytes int64
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	w.bytes += int64(n)
	return n, err
}
