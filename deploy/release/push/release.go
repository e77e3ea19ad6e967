package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// imageNames are the images that are pushed: what deploy/helm and the engines need.
var imageNames = []string{"execd", "egress", "task-executor", "server", "controller", "ingress"}

// ports are those that the images of services expose, as deploy/*.Dockerfile says.
var ports = map[string][]string{"server": {"8080/tcp"}, "controller": {"8080/tcp", "8081/tcp"}, "ingress": {"8081/tcp", "9081/tcp"}}

// maxFile bounds what is read of one file of an archive, in bytes.
const maxFile = 1 << 30

// release is what is pushed of an archive.
type release struct {
	version, architecture string
	made                  time.Time
	files                 map[string][]byte // by their names in the directory of the release
}

// open reads an archive of scripts/dist.sh for Linux.
func open(path string) (*release, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	r := &release{files: map[string][]byte{}}
	for entries := tar.NewReader(unpacked); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		_, name, _ := strings.Cut(header.Name, "/")
		if header.Typeflag != tar.TypeReg || !pushed(name) {
			continue
		}
		if r.files[name], err = io.ReadAll(io.LimitReader(entries, maxFile)); err != nil {
			return nil, err
		}
		r.made = header.ModTime
	}
	for line := range strings.Lines(string(r.files["release"])) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "version":
			r.version = value
		case "architecture":
			r.architecture = value
		}
	}
	if r.version == "" || r.architecture == "" {
		return nil, errors.New("no archive of a release for Linux: its file release names no version and architecture")
	}
	return r, nil
}

// pushed returns whether a file of the archive is part of an image or of the chart.
func pushed(name string) bool {
	if strings.HasPrefix(name, "share/sandbox/images/") || strings.HasPrefix(name, chartDirectory) {
		return true
	}
	program, isProgram := strings.CutPrefix(name, "sandbox-")
	_, ofImage := ports[program]
	return name == "release" || isProgram && ofImage
}

// image returns an image of the release: the one that the archive has, or one that holds a program
// alone.
func (r *release) image(name string) (v1.Image, error) {
	if exposed, ofProgram := ports[name]; ofProgram {
		return r.programImage("sandbox-"+name, exposed)
	}
	archive := "share/sandbox/images/" + name + ".tar"
	content, ok := r.files[archive]
	if !ok {
		return nil, fmt.Errorf("the archive has no %s", archive)
	}
	return tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }, nil)
}

// programImage returns an image that runs the program as the user nobody, like scripts/images.sh
// makes it.
func (r *release) programImage(program string, exposed []string) (v1.Image, error) {
	content, ok := r.files[program]
	if !ok {
		return nil, fmt.Errorf("the archive has no %s", program)
	}
	packed, err := pack([]file{{program, 0o755, content}}, time.Unix(0, 0))
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed)), nil })
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", r.architecture
	config.Config.Entrypoint, config.Config.User = []string{"/" + program}, "65532:65532"
	config.Config.ExposedPorts = map[string]struct{}{}
	for _, port := range exposed {
		config.Config.ExposedPorts[port] = struct{}{}
	}
	return mutate.ConfigFile(image, config)
}

// file is one of a tar archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

// pack returns a tar archive of files that belong to root.
func pack(files []file, made time.Time) ([]byte, error) {
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: made, Format: tar.FormatUSTAR}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
