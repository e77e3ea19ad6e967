package jupyter_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/jupyter"
	"sandbox.internal/runtime/kernel"
)

func writeSpec(t *testing.T, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "kernel.json"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// mine returns the specs whose language is "mine": the machine may have others.
func mine(t *testing.T, host *jupyter.Direct) []kernel.Spec {
	t.Helper()
	specs, err := host.Specs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var found []kernel.Spec
	for _, spec := range specs {
		if spec.Language == "mine" {
			found = append(found, spec)
		}
	}
	return found
}

func TestDirectSpecs(t *testing.T) {
	first, home := t.TempDir(), t.TempDir()
	own := filepath.Join(home, ".local/share/jupyter/kernels")
	spec := func(display string) string {
		return `{"argv": ["x"], "language": "mine", "display_name": "` + display + `"}`
	}
	writeSpec(t, filepath.Join(first, "kernels"), "Both", spec("first"))
	writeSpec(t, own, "both", spec("second"))
	writeSpec(t, own, "alone", spec("own"))
	writeSpec(t, filepath.Join(first, "kernels"), "broken", `{"argv": [`)
	writeSpec(t, own, "broken", spec("the whole one"))
	writeSpec(t, own, "no-argv", `{"language": "mine"}`)
	writeSpec(t, own, "odd-mode", `{"argv": ["x"], "language": "mine", "interrupt_mode": "shout"}`)
	writeSpec(t, own, "not a name", spec("spaces"))
	for _, name := range []string{"empty", "fifo", "endless"} {
		if err := os.Mkdir(filepath.Join(own, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(syscall.Mkfifo(filepath.Join(own, "fifo/kernel.json"), 0o600),
		os.Symlink("/dev/zero", filepath.Join(own, "endless/kernel.json"))); err != nil {
		t.Fatal(err)
	}
	writeSpec(t, own, "long", strings.Repeat(" ", 1<<20)+spec("long"))

	var log bytes.Buffer
	host := jupyter.NewDirect(jupyter.DirectOptions{
		Env:    []string{"HOME=" + home, "JUPYTER_PATH=" + first + ":/nowhere"},
		Logger: zerolog.New(&log),
	})
	want := []kernel.Spec{
		{Name: "alone", Language: "mine", DisplayName: "own"},
		{Name: "both", Language: "mine", DisplayName: "first"},
		{Name: "broken", Language: "mine", DisplayName: "the whole one"},
	}
	if got := mine(t, host); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for _, file := range []string{filepath.Join(first, "kernels/broken"),
		filepath.Join(own, "no-argv"), filepath.Join(own, "odd-mode"), filepath.Join(own, "fifo"),
		filepath.Join(own, "endless"), filepath.Join(own, "long")} {
		if strings.Count(log.String(), file) != 1 {
			t.Errorf("%s is not logged once:\n%s", file, log.String())
		}
	}
	if strings.Contains(log.String(), "empty") || strings.Contains(log.String(), "nowhere") {
		t.Errorf("the log complains about what is no kernelspec:\n%s", log.String())
	}

	writeSpec(t, own, "later", spec("installed later"))
	if got := mine(t, host); len(got) != len(want)+1 {
		t.Errorf("after an installation: %+v", got)
	}
}
