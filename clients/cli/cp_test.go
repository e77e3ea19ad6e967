package cli_test

import (
	"archive/tar"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sandbox.internal/clients/cli"
	"sandbox.internal/clients/go/execd"
)

// stored is what a daemon was given, by its exact path, as its octal digits.
type stored struct {
	mu    sync.Mutex
	modes map[string]int
}

func (s *stored) put(path string, exact *string, mode *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if exact != nil {
		bytes, _ := base64.StdEncoding.DecodeString(*exact)
		path = string(bytes)
	}
	s.modes[path] = *mode
}

// storing is a daemon that has the directory /srv and takes uploads.
func storing(t *testing.T) (*stored, string) {
	t.Helper()
	s := &stored{modes: map[string]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /files/info", func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Query().Get("path")
		answer(w, http.StatusOK, map[string]any{path: map[string]any{"path": path, "type": "directory", "mode": 755}})
	})
	mux.HandleFunc("POST /directories", func(w http.ResponseWriter, r *http.Request) {
		var wanted map[string]execd.Permission
		if err := json.NewDecoder(r.Body).Decode(&wanted); err != nil {
			t.Error(err)
		}
		for path, p := range wanted {
			if p.Mode != nil {
				s.put(path, p.RawPath, p.Mode)
			}
		}
		answer(w, http.StatusOK, map[string]any{})
	})
	mux.HandleFunc("POST /files/upload", func(w http.ResponseWriter, r *http.Request) {
		_, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if err != nil {
			t.Error(err)
		}
		form := multipart.NewReader(r.Body, parameters["boundary"])
		part, err := form.NextPart()
		var metadata execd.UploadMetadata
		if err := errors.Join(err, json.NewDecoder(part).Decode(&metadata)); err != nil {
			t.Error(err)
		}
		s.put(metadata.Path, metadata.RawPath, metadata.Mode)
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		answer(w, http.StatusOK, map[string]any{})
	})
	return s, daemon(t, mux)
}

// TestCopiesInKeepNamesAndModes, from a directory and from a tar stream.
func TestCopiesInKeepNamesAndModes(t *testing.T) {
	t.Parallel()
	want := map[string]int{"/srv/n": 1755, "/srv/n/a\xfe": 644, "/srv/n/a\xff": 4755, "/srv/n/d\xff": 2770, "/srv/n/d\xff/plain": 6711}
	directory := filepath.Join(t.TempDir(), "n")
	var archive strings.Builder
	writer := tar.NewWriter(&archive)
	for _, entry := range []struct {
		name      string
		mode      os.FileMode
		tar       int64
		directory bool
	}{
		{"", 0o755 | os.ModeSticky, 0o1755, true}, {"/a\xfe", 0o644, 0o644, false}, {"/a\xff", 0o755 | os.ModeSetuid, 0o4755, false},
		{"/d\xff", 0o770 | os.ModeSetgid, 0o2770, true}, {"/d\xff/plain", 0o711 | os.ModeSetuid | os.ModeSetgid, 0o6711, false},
	} {
		header := &tar.Header{Name: "n" + entry.name, Mode: entry.tar, Typeflag: tar.TypeReg, Format: tar.FormatGNU}
		var err error
		if entry.directory {
			header.Typeflag = tar.TypeDir
			err = os.Mkdir(directory+entry.name, 0o700)
		} else {
			err = os.WriteFile(directory+entry.name, nil, 0o600)
		}
		if err := errors.Join(err, os.Chmod(directory+entry.name, entry.mode), writer.WriteHeader(header)); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	for name, source := range map[string]string{"directory": directory, "tar stream": "-"} {
		got, url := storing(t)
		if done := runWith(t.Context(), nil, archive.String(), "--url", url, "cp", "-q", source, sandboxID+":/srv"); done.code != cli.ExitOK {
			t.Fatalf("%s: code %d, %s", name, done.code, done.stderr)
		}
		if fmt.Sprint(got.modes) != fmt.Sprint(want) {
			t.Errorf("%s: the daemon has %q, want %q", name, fmt.Sprint(got.modes), fmt.Sprint(want))
		}
	}
}

// TestCopiesOutKeepNamesAndModes, to a directory and to a tar stream.
func TestCopiesOutKeepNamesAndModes(t *testing.T) {
	t.Parallel()
	type info = map[string]any
	fact := func(path, kind string, mode int) info {
		raw := base64.StdEncoding.EncodeToString([]byte(path))
		return info{"path": string([]rune(path)), "raw_path": raw, "type": kind, "size": 0, "mode": mode}
	}
	lists := map[string][]info{
		"/srv/n\xff":       {fact("/srv/n\xff/a\xfe", "file", 644), fact("/srv/n\xff/a\xff", "file", 6755), fact("/srv/n\xff/d\xff", "directory", 3750)},
		"/srv/n\xff/d\xff": {},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /files/info", func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Query().Get("path")
		answer(w, http.StatusOK, map[string]any{string([]rune(path)): fact(path, "directory", 1777)})
	})
	mux.HandleFunc("GET /directories/list", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, lists[r.URL.Query().Get("path")])
	})
	mux.HandleFunc("GET /files/download", func(w http.ResponseWriter, r *http.Request) {
		if path := r.URL.Query().Get("path"); !strings.HasPrefix(path, "/srv/n\xff/a") {
			t.Errorf("asked for %q", path)
		}
		w.Header().Set("Etag", `"1"`)
	})
	url, directory := daemon(t, mux), t.TempDir()
	if got := run(t.Context(), nil, "--url", url, "cp", "-q", sandboxID+":/srv/n\xff", directory); got.code != cli.ExitOK {
		t.Fatalf("code %d, %s", got.code, got.stderr)
	}
	const special = os.ModeSetuid | os.ModeSetgid | os.ModeSticky
	for name, want := range map[string]os.FileMode{
		"n\xff": os.ModeDir | os.ModeSticky, "n\xff/a\xfe": 0, "n\xff/a\xff": os.ModeSetuid | os.ModeSetgid, "n\xff/d\xff": os.ModeDir | os.ModeSetgid | os.ModeSticky,
	} {
		found, err := os.Lstat(filepath.Join(directory, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := found.Mode() & (special | os.ModeDir); got != want {
			t.Errorf("%q: mode %v, want %v", name, got, want)
		}
	}
	packed := run(t.Context(), nil, "--url", url, "cp", sandboxID+":/srv/n\xff", "-")
	modes := map[string]int64{}
	reader := tar.NewReader(strings.NewReader(packed.stdout))
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		modes[header.Name] = header.Mode
	}
	want := map[string]int64{"n\xff/": 0o1777, "n\xff/a\xfe": 0o644, "n\xff/a\xff": 0o6755, "n\xff/d\xff/": 0o3750}
	if fmt.Sprint(modes) != fmt.Sprint(want) {
		t.Errorf("the archive has %q, want %q", fmt.Sprint(modes), fmt.Sprint(want))
	}
}
