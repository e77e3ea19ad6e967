package images

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/distribution/reference"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandbox.internal/internal/remove"
	"sandbox.internal/runtime/engine"
)

// What an archive may hold. Each image has one file per layer and a few more.
const (
	maxArchiveFiles  = 100_000
	maxArchiveImages = 64
	maxArchiveNames  = 16 << 20 // bytes of the names of files and links; they are kept in memory
	maxArchiveIndex  = 4 << 20  // bytes of what names all images and their layers
)

var errTooManyImages = fmt.Errorf("the archive has more than %d images", maxArchiveImages)

// Load takes in the images of an archive, as `docker save` or an OCI layout in a tar file, which
// may be compressed, and returns them. The archive lies on the disk until its layers are unpacked.
// It returns [engine.ErrImage] when the archive is not what it should be; no name has changed then.
// An error of reading the archive is wrapped as it is.
func (s *Store) Load(ctx context.Context, archive io.Reader, progress func(string)) ([]Image, error) {
	if progress == nil {
		progress = func(string) {}
	}
	const op = "load images"
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	defer done()
	source := &contextReader{ctx: ctx, source: archive}
	loaded, err := s.loadArchive(ctx, source, progress)
	if err != nil && source.failed != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("%s: read the archive: %w", op, source.failed)
	}
	return loaded, describeError(ctx, op, err)
}

// enter keeps the store from closing until done is called, and ends the context when it closes.
func (s *Store) enter(ctx context.Context) (_ context.Context, done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, nil, fmt.Errorf("%w: the store is closed", engine.ErrUnavailable)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	s.working.Add(1)
	return ctx, func() {
		stop()
		cancel()
		s.working.Done()
	}, nil
}

func (s *Store) loadArchive(ctx context.Context, archive io.Reader, progress func(string)) (loaded []Image, err error) {
	directory := s.temporary(makingDirectory)
	if err := os.Mkdir(directory, 0o700); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove.All(context.WithoutCancel(ctx), directory)) }()
	progress("reading the archive")
	files, err := s.spool(ctx, directory, archive, min(s.limits.bytes, s.maxBytes))
	if err != nil {
		return nil, err
	}
	found, err := files.images()
	if err != nil {
		return nil, err
	}
	// The layers of all images come before the first name.
	meter := newMeter("loading", progress)
	for _, one := range found {
		release, err := s.obtainAll(ctx, one.parts, meter)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	return s.add(ctx, found, true)
}

// spooled are the files of an archive, which lie under numbers in a directory.
type spooled struct {
	files map[string]spooledFile // by clean name
	links map[string]string      // clean name -> clean name
}

type spooledFile struct {
	path string
	size int64
}

// spool writes the regular files of the archive, at most limit bytes, into the directory.
func (s *Store) spool(ctx context.Context, directory string, archive io.Reader, limit int64) (*spooled, error) {
	plain, err := decompress(archive, wideWindow)
	if err != nil {
		return nil, fmt.Errorf("the archive is broken: %w", err)
	}
	defer func() { _ = plain.Close() }()
	result := &spooled{files: map[string]spooledFile{}, links: map[string]string{}}
	entries := tar.NewReader(plain)
	names := 0
	for number := 0; ; number++ {
		header, err := entries.Next()
		if err == io.EOF {
			return result, nil
		}
		if err != nil {
			return nil, fmt.Errorf("the archive is broken: %w", err)
		}
		if number >= maxArchiveFiles {
			return nil, fmt.Errorf("the archive has more than %d files", maxArchiveFiles)
		}
		if names += len(header.Name) + len(header.Linkname); names > maxArchiveNames {
			return nil, fmt.Errorf("the names in the archive take more than %d bytes", maxArchiveNames)
		}
		name := path.Clean("/" + header.Name)
		switch header.Typeflag {
		case tar.TypeReg:
			if limit -= header.Size; limit < 0 {
				return nil, errors.New("the archive is larger than images may be")
			}
			file := spooledFile{path: filepath.Join(directory, strconv.Itoa(number)), size: header.Size}
			if err := s.writeSpooled(file.path, &contextReader{ctx: ctx, source: entries}); err != nil {
				return nil, fmt.Errorf("file %q of the archive: %w", name, err)
			}
			result.files[name] = file
		case tar.TypeSymlink:
			result.links[name] = path.Join(path.Dir(name), header.Linkname)
		case tar.TypeLink:
			result.links[name] = path.Clean("/" + header.Linkname)
		}
	}
}

func (s *Store) writeSpooled(path string, content io.Reader) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(&guardedFile{file: file, store: s}, content)
	return errors.Join(err, file.Close())
}

// guardedFile leaves room on the disk.
type guardedFile struct {
	file  *os.File
	store *Store
}

func (f *guardedFile) Write(p []byte) (int, error) {
	if err := f.store.checkDisk(int64(len(p))); err != nil {
		return 0, err
	}
	return f.file.Write(p)
}

// find follows links, of which a chain has few.
func (s *spooled) find(name string) (spooledFile, error) {
	name = path.Clean("/" + name)
	for range 8 {
		if file, ok := s.files[name]; ok {
			return file, nil
		}
		target, ok := s.links[name]
		if !ok {
			break
		}
		name = target
	}
	return spooledFile{}, fmt.Errorf("the archive has no file %q", name)
}

func (s *spooled) read(name string, limit int64) ([]byte, error) {
	file, err := s.find(name)
	if err != nil {
		return nil, err
	}
	if file.size > limit {
		return nil, fmt.Errorf("%q of the archive has %d bytes, more than %d", name, file.size, limit)
	}
	return os.ReadFile(file.path)
}

func (s *spooled) readJSON(name string, into any) error {
	content, err := s.read(name, maxArchiveIndex)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("%q of the archive is broken: %w", name, err)
	}
	return nil
}

func (s *spooled) blob(name string, digest v1.Hash) (blob, error) {
	file, err := s.find(name)
	if err != nil {
		return blob{}, err
	}
	return blob{digest: digest, size: file.size, open: func(context.Context, func() bool) (io.ReadCloser, error) { return os.Open(file.path) }}, nil
}

// images reads what the archive says about its images. An archive of newer Docker engines has both
// forms; the older one has the full names.
func (s *spooled) images() ([]wanted, error) {
	_, savedErr := s.find("manifest.json")
	_, layoutErr := s.find("index.json")
	switch {
	case savedErr == nil:
		return s.savedImages()
	case layoutErr == nil:
		return s.layoutImages()
	}
	return nil, errors.New("the archive holds no images: it has neither manifest.json (docker save) nor index.json (OCI layout)")
}

func (s *spooled) savedImages() ([]wanted, error) {
	var saved []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := s.readJSON("manifest.json", &saved); err != nil {
		return nil, err
	}
	if len(saved) > maxArchiveImages {
		return nil, errTooManyImages
	}
	var found []wanted
	for _, one := range saved {
		if err := checkLayers(len(one.Layers)); err != nil {
			return nil, err
		}
		config, err := s.read(one.Config, maxConfig)
		if err != nil {
			return nil, err
		}
		var blobs []blob
		for _, name := range one.Layers {
			b, err := s.blob(name, v1.Hash{})
			if err != nil {
				return nil, err
			}
			blobs = append(blobs, b)
		}
		parts, err := newParts(config, blobs)
		if err != nil {
			return nil, err
		}
		image := wanted{parts: parts}
		for _, tag := range one.RepoTags {
			name, err := reference.ParseDockerRef(tag)
			if err != nil {
				return nil, fmt.Errorf("name %q of an image: %w", tag, err)
			}
			if _, ok := name.(reference.Digested); ok {
				return nil, fmt.Errorf("name %q of an image: an archive in the form of docker save cannot prove a digest, its names have tags alone", tag)
			}
			image.names = append(image.names, name.String())
		}
		found = append(found, image)
	}
	return found, nil
}

// What tools write the name of an image to; the second may be a tag alone.
const (
	fullNameAnnotation = "io.containerd.image.name"
	refNameAnnotation  = "org.opencontainers.image.ref.name"
)

func (s *spooled) layoutImages() ([]wanted, error) {
	var index v1.IndexManifest
	if err := s.readJSON("index.json", &index); err != nil {
		return nil, err
	}
	if len(index.Manifests) > maxArchiveImages {
		return nil, errTooManyImages
	}
	var found []wanted
	for _, descriptor := range index.Manifests {
		if isArtifact(descriptor) || !fits(descriptor.Platform) || isSurpassed(descriptor, index.Manifests) {
			continue
		}
		parts, err := s.layoutImage(descriptor, 0)
		if errors.Is(err, errNoImage) {
			continue
		}
		if err != nil {
			return nil, err
		}
		image := wanted{parts: parts}
		name, err := layoutName(descriptor)
		if err != nil {
			return nil, err
		}
		if name != "" {
			image.names = []string{name}
		}
		found = append(found, image)
	}
	if found == nil {
		return nil, fmt.Errorf("the archive has %w", errNoImage)
	}
	return found, nil
}

// isSurpassed reports whether another image of the same name fits this machine better.
func isSurpassed(d v1.Descriptor, all []v1.Descriptor) bool {
	name, err := layoutName(d)
	return name != "" && err == nil && slices.ContainsFunc(all, func(other v1.Descriptor) bool {
		if isArtifact(other) || !fits(other.Platform) || compare(other, d) >= 0 {
			return false
		}
		same, err := layoutName(other)
		return err == nil && same == name
	})
}

// onlyTag is a reference that is a tag, as the specification of layouts has it, and no name: the
// tool that wrote it knew the name otherwise.
var onlyTag = regexp.MustCompile(`^(latest|v?[0-9][A-Za-z0-9_.-]*)$`)

// layoutName returns the full name of an image in a layout; empty when it has none.
func layoutName(d v1.Descriptor) (string, error) {
	for _, annotation := range []string{fullNameAnnotation, refNameAnnotation} {
		text := d.Annotations[annotation]
		name, err := reference.ParseDockerRef(text)
		if err != nil || onlyTag.MatchString(text) {
			continue
		}
		// Whoever asks for this digest later gets the image without another check.
		if digested, ok := name.(reference.Digested); ok && digested.Digest().String() != d.Digest.String() {
			return "", fmt.Errorf("name %q of an image: its manifest has the digest %s", name, d.Digest)
		}
		return name.String(), nil
	}
	return "", nil
}

// layoutImage reads a manifest, or an index with one for this machine.
func (s *spooled) layoutImage(descriptor v1.Descriptor, depth int) (*parts, error) {
	content, err := s.readBlob(descriptor.Digest, maxManifest)
	if err != nil {
		return nil, err
	}
	var manifest struct {
		v1.Manifest
		ArtifactType string          `json:"artifactType"`
		Manifests    []v1.Descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(content, &manifest); err != nil {
		return nil, fmt.Errorf("manifest %s is broken: %w", descriptor.Digest, err)
	}
	if manifest.Manifests != nil {
		if depth >= maxIndexDepth {
			return nil, fmt.Errorf("%w: more than %d indexes lie in one another", errNoImage, maxIndexDepth)
		}
		return firstImage(manifest.Manifests, func(child v1.Descriptor) (*parts, error) { return s.layoutImage(child, depth+1) })
	}
	if err := checkImage(manifest.ArtifactType, manifest.Config.MediaType); err != nil {
		return nil, err
	}
	if err := checkLayers(len(manifest.Layers)); err != nil {
		return nil, err
	}
	config, err := s.readBlob(manifest.Config.Digest, maxConfig)
	if err != nil {
		return nil, err
	}
	var blobs []blob
	for _, layer := range manifest.Layers {
		b, err := s.blob(blobName(layer.Digest), layer.Digest)
		if err != nil {
			return nil, err
		}
		blobs = append(blobs, b)
	}
	return newParts(config, blobs)
}

func (s *spooled) readBlob(digest v1.Hash, limit int64) ([]byte, error) {
	content, err := s.read(blobName(digest), limit)
	if err != nil {
		return nil, err
	}
	if got := digestOf(content); got != digest.String() {
		return nil, fmt.Errorf("blob %s of the archive has the digest %s", digest, got)
	}
	return content, nil
}

func blobName(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }

// contextReader ends with its context, and keeps what its source failed with.
type contextReader struct {
	ctx    context.Context
	source io.Reader
	failed error
}

func (r *contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.source.Read(p)
	if err != nil && err != io.EOF {
		r.failed = err
	}
	return n, err
}
