package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// TestPush: a registry has each image for both architectures, and the chart with these images as
// its values; and the same archives are the same content again.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	where := strings.TrimPrefix(server.URL, "http://") + "/sandbox"
	directory := t.TempDir()
	archives := []string{archive(t, directory, "v1.2.3", "amd64"), archive(t, directory, "v1.2.3", "arm64")}
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := push(t.Context(), out, where, archives); err != nil {
			t.Fatal(err)
		}
	}
	if first.String() != second.String() || strings.Count(first.String(), ":1.2.3@sha256:") != len(imageNames)+1 {
		t.Errorf("printed\n%s\nand\n%s", &first, &second)
	}
	for _, image := range imageNames {
		index, err := remote.Index(tag(t, where+"/"+image+":1.2.3"))
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		var architectures []string
		for _, m := range manifest.Manifests {
			architectures = append(architectures, m.Platform.OS+"/"+m.Platform.Architecture)
		}
		if !slices.Equal(architectures, []string{"linux/amd64", "linux/arm64"}) {
			t.Errorf("%s is for %q", image, architectures)
		}
	}
	config := configOf(t, tag(t, where+"/server:1.2.3"), "arm64")
	if config.Architecture != "arm64" || !slices.Equal(config.Config.Entrypoint, []string{"/sandbox-server"}) || config.Config.User != "65532:65532" {
		t.Errorf("the image of the service has the configuration %+v", config)
	}
	checkChart(t, where)
}

// TestPushRefuses: archives of two versions, of one architecture twice, or of something else are
// refused, and nothing is pushed.
func TestPushRefuses(t *testing.T) {
	directory, other := t.TempDir(), t.TempDir()
	first := archive(t, directory, "v1.2.3", "amd64")
	text := filepath.Join(directory, "text")
	if err := os.WriteFile(text, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, archives := range [][]string{{first, archive(t, other, "v1.2.4", "arm64")}, {first, first}, {text}, {text + ".none"}} {
		if err := push(t.Context(), io.Discard, "127.0.0.1:1/sandbox", archives); err == nil || !strings.Contains(err.Error(), archives[len(archives)-1]) {
			t.Errorf("%q: %v, want an error that names the last one", archives, err)
		}
	}
}

func checkChart(t *testing.T, where string) {
	t.Helper()
	chart, err := remote.Image(tag(t, where+"/charts/sandbox:1.2.3"))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := chart.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if manifest.Config.MediaType != chartConfig || len(manifest.Layers) != 1 || manifest.Layers[0].MediaType != chartContent {
		t.Fatalf("the chart has the manifest %+v", manifest)
	}
	raw, err := chart.RawConfigFile()
	var metadata struct{ Name, Version, AppVersion string }
	if err != nil || json.Unmarshal(raw, &metadata) != nil || metadata.Name != "sandbox" || metadata.Version != "1.2.3" || metadata.AppVersion != "1.2.3" {
		t.Errorf("the chart has the configuration %s, %v", raw, err)
	}
	layers, err := chart.Layers()
	if err != nil {
		t.Fatal(err)
	}
	compressed, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	values := unpack(t, compressed)["sandbox/values.yaml"]
	if !strings.Contains(values, "execdImage: "+where+"/execd:1.2.3\n") || strings.Contains(values, ":dev") {
		t.Errorf("the chart has the values\n%s", values)
	}
}

func tag(t *testing.T, text string) name.Tag {
	t.Helper()
	parsed, err := name.NewTag(text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func configOf(t *testing.T, from name.Tag, architecture string) *v1.ConfigFile {
	t.Helper()
	image, err := remote.Image(from, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: architecture}))
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// archive makes one with what is pushed of a release, with the chart of this tree.
func archive(t *testing.T, directory, version, architecture string) string {
	t.Helper()
	files := []file{{"x/release", 0o644, []byte("version=" + version + "\narchitecture=" + architecture + "\n")}}
	for _, program := range []string{"server", "controller", "ingress", "keeper"} {
		files = append(files, file{"x/sandbox-" + program, 0o755, []byte(program)})
	}
	for _, image := range []string{"execd", "egress", "task-executor", "first"} {
		made, err := random.Image(100, 1, random.WithSource(&counter{}))
		if err != nil {
			t.Fatal(err)
		}
		var content bytes.Buffer
		if err := tarball.Write(tag(t, "sandbox/"+image+":dev"), made, &content); err != nil {
			t.Fatal(err)
		}
		files = append(files, file{"x/share/sandbox/images/" + image + ".tar", 0o644, content.Bytes()})
	}
	for _, name := range []string{"Chart.yaml", "values.yaml", "templates/server.yaml"} {
		content, err := os.ReadFile(filepath.Join("../../helm/sandbox", name))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file{"x/" + chartDirectory + name, 0o644, content})
	}
	packed, err := pack(files, time.Unix(1767225600, 0))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(directory, architecture+".tar.gz")
	var compressed bytes.Buffer
	writer := gzip.NewWriter(&compressed)
	if _, err := writer.Write(packed); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, compressed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// counter is a source of numbers that are always the same.
type counter struct{ n int64 }

func (c *counter) Int63() int64 { c.n++; return c.n }
func (c *counter) Seed(int64)   {}

// unpack returns the files of a compressed archive.
func unpack(t *testing.T, compressed io.ReadCloser) map[string]string {
	t.Helper()
	defer func() { _ = compressed.Close() }()
	plain, err := gzip.NewReader(compressed)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for entries := tar.NewReader(plain); ; {
		header, err := entries.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(entries)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(content)
	}
}
