package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/internal/remove"
	"sandbox.internal/runtime/oci/images/unpack"
)

// layersAtOnce bounds how many layers are downloaded and unpacked at once, layersOfHost those of
// one registry, layersOfPull those of one image.
const (
	layersAtOnce = 32
	layersOfHost = layersAtOnce / 2
	layersOfPull = 4
)

// wideLayersAtOnce bounds how many layers have the memory for a large window, wideLayersOfHost
// those of one registry.
const (
	wideLayersAtOnce = 4
	wideLayersOfHost = wideLayersAtOnce / 2
)

// asksAtOnce bounds how many endpoints are asked at once for manifest and configuration, which are
// held in memory, asksOfHost those of one registry.
const (
	asksAtOnce = 256
	asksOfHost = asksAtOnce / 8
)

// parts are what an image is made of, wherever it comes from.
type parts struct {
	id        string
	rawConfig []byte
	config    *configFile
	blobs     []blob // one per layer, lowest first
}

// blob is a layer as it is stored or sent, mostly compressed.
type blob struct {
	digest v1.Hash // zero when it is not known: then the diff id alone is checked
	size   int64   // bytes
	host   string  // of the registry that it comes from, perhaps with a port; empty for a file of this machine
	// open reads it. A registry that is slow calls yield, which hands the turn to another layer
	// that waits for one, and fails if it does.
	open func(ctx context.Context, yield func() bool) (io.ReadCloser, error)
}

// newParts checks that configuration and layers belong together.
func newParts(rawConfig []byte, blobs []blob) (*parts, error) {
	config, err := parseConfig(rawConfig)
	if err != nil {
		return nil, err
	}
	if len(config.RootFS.DiffIDs) != len(blobs) {
		return nil, fmt.Errorf("the image has %d layers, and %d diff ids in its configuration", len(blobs), len(config.RootFS.DiffIDs))
	}
	return &parts{id: digestOf(rawConfig), rawConfig: rawConfig, config: config, blobs: blobs}, nil
}

// making is a layer that is being unpacked.
type making struct{ done chan struct{} }

// origin is a layer with what it is unpacked from. Only the same bytes from the same host are
// waited for: another one may be slow, or send bytes that are not the layer.
type origin struct {
	diffID string
	digest v1.Hash
	host   string
}

// obtainAll gets the layers that are not here, several at once, and pins all until release is
// called. Layers that are complete stay when others fail, for the next try.
func (s *Store) obtainAll(ctx context.Context, p *parts, meter *meter) (release func(), err error) {
	diffIDs := newImage(p.id, p.config, time.Time{}).layers // each once
	blobs := map[string]blob{}
	for position, diffID := range p.config.RootFS.DiffIDs {
		blobs[diffID.String()] = p.blobs[position]
	}
	meter.begin(diffIDs, blobs)
	limits := s.newLimits()
	pinned := make([]bool, len(diffIDs))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(layersOfPull)
	for position, diffID := range diffIDs {
		group.Go(func() error {
			err := s.obtain(groupCtx, diffID, blobs[diffID], limits, meter.layer(diffID))
			pinned[position] = err == nil
			return err
		})
	}
	err = group.Wait()
	release = func() {
		for position, diffID := range diffIDs {
			if pinned[position] {
				s.unpin(diffID)
			}
		}
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// obtain makes sure that the layer is here and pins it. Of several callers at once with the same
// origin one unpacks it.
func (s *Store) obtain(ctx context.Context, diffID string, b blob, limits *unpack.Limits, progress *layerMeter) error {
	from := origin{diffID: diffID, digest: b.digest, host: b.host}
	for {
		m, mine := s.join(from)
		switch {
		case m == nil:
			progress.finish()
			return nil
		case mine:
			err := s.makeLayer(ctx, diffID, b, limits, progress)
			s.mu.Lock()
			delete(s.making, from)
			s.mu.Unlock()
			close(m.done)
			if err != nil {
				return fmt.Errorf("layer %s: %w", short(diffID), err)
			}
			progress.finish()
			return nil
		}
		select {
		case <-m.done: // complete, or failed: then it is this caller's turn
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// join pins the layer when it is here, and returns nil. Otherwise it returns what waits for its
// end; mine says that the caller makes it.
func (s *Store) join(from origin) (m *making, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pin(from.diffID) {
		return nil, false
	}
	if m, ok := s.making[from]; ok {
		return m, false
	}
	m = &making{done: make(chan struct{})}
	s.making[from] = m
	return m, true
}

// pin keeps the layer from being removed; false when it is not here. It needs s.mu.
func (s *Store) pin(diffID string) bool {
	l, ok := s.layers[diffID]
	if ok {
		l.pins++
	}
	return ok
}

func (s *Store) unpin(diffID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.layers[diffID]
	l.pins--
	l.used = time.Now()
}

// makeLayer unpacks a layer while it is read, and pins it. One that turns out to need a large
// window is read again from its begin, once it may have the memory: one that waits for that must
// not keep its turn from others.
func (s *Store) makeLayer(ctx context.Context, diffID string, b blob, limits *unpack.Limits, progress *layerMeter) error {
	never := func() bool { return false }
	err := s.tryLayer(ctx, diffID, b, window, never, limits, progress)
	if !needsWideWindow(err) {
		return err
	}
	wide, err := s.wideTurns.take(ctx, b.host)
	if err != nil {
		return err
	}
	defer wide.release()
	progress.restart()
	return s.tryLayer(ctx, diffID, b, wideWindow, wide.yield, limits, progress)
}

// tryLayer does that with a window. A registry that is slow also calls yield.
func (s *Store) tryLayer(ctx context.Context, diffID string, b blob, window uint64, yield func() bool, limits *unpack.Limits,
	progress *layerMeter) (err error) {
	turn, err := s.turns.take(ctx, b.host)
	if err != nil {
		return err
	}
	defer turn.release()
	directory := s.temporary(makingDirectory)
	tree := filepath.Join(directory, treeDirectory)
	if err := os.MkdirAll(tree, 0o700); err != nil {
		return err
	}
	var reserved int64
	renamed, pinned := false, false
	defer func() {
		if renamed {
			return
		}
		s.giveBack(reserved)
		err = errors.Join(err, remove.All(context.WithoutCancel(ctx), directory))
		if err != nil && pinned {
			s.unpin(diffID)
		}
	}()
	yieldAny := func() bool { return turn.yield() || yield() }
	result, err := unpackBlob(ctx, diffID, b, window, yieldAny, progress, func(archive io.Reader) (unpack.Result, error) {
		return unpack.Layer(ctx, tree, archive, limits, func(n int64) error {
			err := s.reserve(ctx, n)
			if err == nil {
				reserved += n
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	file := layerFile{Bytes: result.Bytes, Opaque: result.Opaque, Implied: len(result.Implied) > 0, Boot: s.boot}
	if file.Implied {
		if err := s.writeJSON(filepath.Join(directory, impliedRecord), result.Implied); err != nil {
			return err
		}
	}
	if err := s.writeJSON(filepath.Join(directory, layerRecord), file); err != nil {
		return err
	}
	failpoint.Hit(UnpackedFailpoint)
	if renamed, pinned, err = s.complete(diffID, directory, file); renamed {
		s.giveBack(reserved - result.Bytes)
	}
	return err
}

// complete makes the directory the layer and pins it. When the layer came from elsewhere meanwhile
// it pins that one and leaves the directory.
func (s *Store) complete(diffID, directory string, file layerFile) (renamed, pinned bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pin(diffID) {
		return false, true, nil
	}
	if err := os.Rename(directory, s.layer(diffID)); err != nil {
		return false, false, err
	}
	s.layers[diffID] = &layer{layerFile: file, pins: 1, used: time.Now()}
	return true, true, nil
}

// unpackBlob decompresses in a goroutine of its own, beside the writing of files, and checks size,
// digest and diff id.
func unpackBlob(ctx context.Context, diffID string, b blob, window uint64, yield func() bool, progress *layerMeter,
	write func(archive io.Reader) (unpack.Result, error)) (unpack.Result, error) {
	body, err := b.open(ctx, yield)
	if err != nil {
		return unpack.Result{}, err
	}
	defer func() { _ = body.Close() }()
	compressed := &checkedReader{source: body, sum: sha256.New(), progress: progress}
	ahead := readAhead(func() (io.ReadCloser, error) { return decompress(compressed, window) })
	archive := &checkedReader{source: ahead, sum: sha256.New()}
	result, err := write(archive)
	// The reading goroutine ends before the sums are compared.
	_ = body.Close()
	ahead.stop()
	switch {
	case ctx.Err() != nil:
		return unpack.Result{}, ctx.Err()
	case err != nil:
		return unpack.Result{}, err
	case compressed.size != b.size:
		return unpack.Result{}, fmt.Errorf("the layer has %d bytes, not %d as its manifest says", compressed.size, b.size)
	case b.digest != (v1.Hash{}) && compressed.digest() != b.digest.String():
		return unpack.Result{}, fmt.Errorf("the layer's digest is %s, not %s as its manifest says", compressed.digest(), b.digest)
	case archive.digest() != diffID:
		return unpack.Result{}, fmt.Errorf("the layer unpacks to %s, not to %s as the image's configuration says", archive.digest(), diffID)
	}
	return result, nil
}

// checkedReader sums up what is read through it.
type checkedReader struct {
	source   io.Reader
	sum      hash.Hash
	size     int64
	progress *layerMeter // may be nil
}

func (r *checkedReader) Read(p []byte) (int, error) {
	n, err := r.source.Read(p)
	_, _ = r.sum.Write(p[:n])
	r.size += int64(n)
	if r.progress != nil {
		r.progress.add(n)
	}
	return n, err
}

func (r *checkedReader) digest() string { return "sha256:" + hex.EncodeToString(r.sum.Sum(nil)) }

// short is a digest as Docker shows it.
func short(digest string) string { return hexOf(digest)[:12] }
