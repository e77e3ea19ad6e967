package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/test/wait"
)

// forest makes directories with files in them, and a file that comes behind them, in memory: a disk
// needs a minute for a hundred thousand files when others write to it.
func forest(t *testing.T, directories, each int) string {
	t.Helper()
	const memory = "/dev/shm"
	// A test that was killed has left its own there.
	left, err := filepath.Glob(memory + "/forest-*-*")
	must(t, err)
	for _, forest := range left {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(forest), "forest-"), "-")
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, os.ErrNotExist) {
			must(t, os.RemoveAll(forest))
		}
	}
	parent, err := os.MkdirTemp(memory, fmt.Sprintf("forest-%d-", os.Getpid()))
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(parent)) })
	root := filepath.Join(parent, "root") // it is moved beside itself
	must(t, os.Mkdir(root, 0o755))
	for i := range directories {
		dir := fmt.Sprintf("%s/%04d", root, i)
		must(t, os.Mkdir(dir, 0o755))
		for j := range each {
			must(t, unix.Mknod(fmt.Sprintf("%s/file-%04d", dir, j), unix.S_IFREG|0o644, 0))
		}
	}
	write(t, filepath.Join(root, "zzz"), "")
	return root
}

// TestWalksAreStreamed: searches and listings of 60 000 files cost the daemon a fraction of what
// their answers would take in memory.
func TestWalksAreStreamed(t *testing.T) {
	t.Parallel()
	const count = 60_000
	root := forest(t, 60, count/60)
	execd := &child{}
	d := execd.start(t, newTransport(t))
	before := execd.atRest(t, d)
	client := &http.Client{Transport: &http.Transport{}, Timeout: wait.Patience()}
	defer client.CloseIdleConnections()
	for name, target := range map[string]string{
		"search": "/files/search?path=" + url.QueryEscape(root),
		"list":   "/directories/list?depth=2&path=" + url.QueryEscape(root),
	} {
		response, err := client.Get(d.url + target)
		must(t, err)
		defer response.Body.Close()
		decoder := json.NewDecoder(response.Body)
		_, err = decoder.Token()
		must(t, err)
		files, last := 0, ""
		for decoder.More() {
			var info gen.FileInfo
			must(t, decoder.Decode(&info))
			if info.Path <= last {
				t.Fatalf("%s: %s comes after %s", name, info.Path, last)
			}
			if last = info.Path; info.Type == gen.FileTypeFile {
				files++
			}
		}
		if _, err := decoder.Token(); err != nil || files != count+1 {
			t.Errorf("%s: %d files of %d (%v)", name, files, count+1, err)
		}
	}
	if after := execd.holds(t); after.Heap > before.Heap+16<<20 {
		t.Errorf("the heap has grown from %d to %d MiB", before.Heap>>20, after.Heap>>20)
	}
}

// TestWalkThatFailsOnTheWayIsCut: its client does not take the part that it has for the whole.
func TestWalkThatFailsOnTheWayIsCut(t *testing.T) {
	t.Parallel()
	d := start(t)
	root := forest(t, 100, 1000) // far more than the buffers between the daemon and its client hold
	client := &http.Client{Transport: &http.Transport{}, Timeout: wait.Patience()}
	defer client.CloseIdleConnections()
	response, err := client.Get(d.url + "/files/search?path=" + url.QueryEscape(root))
	must(t, err)
	defer response.Body.Close()
	// At one moment: a walk that meets a tree during its removal may leave out what is gone, and
	// end.
	must(t, os.Rename(root, root+".moved"))
	if read, err := io.Copy(io.Discard, response.Body); err == nil || response.StatusCode != http.StatusOK {
		t.Errorf("status %d, and %d bytes end in order", response.StatusCode, read)
	}
}
