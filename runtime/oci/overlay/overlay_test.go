package overlay_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/overlay"
	"sandbox.internal/runtime/oci/thread"
)

// newOverlay makes layers, whose names no option could have. Each has the file "all" with its
// number, and a file of its own.
func newOverlay(t *testing.T, layers int) (o overlay.Overlay, target string) {
	t.Helper()
	directory := t.TempDir()
	for i := range layers {
		layer := filepath.Join(directory, "layer, "+strings.Repeat("long:", 20)+strconv.Itoa(i))
		mkdir(t, layer)
		for _, file := range []string{"all", "layer" + strconv.Itoa(i)} {
			if err := os.WriteFile(filepath.Join(layer, file), []byte(strconv.Itoa(i)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		o.Lower = append(o.Lower, layer)
	}
	for field, name := range map[*string]string{&o.Upper: "upper", &o.Work: "work", &target: "target"} {
		*field = filepath.Join(directory, name)
		mkdir(t, *field)
	}
	o.Volatile = true
	return o, target
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
}

// checkLayers looks whether a directory shows all the layers, the highest at the top.
func checkLayers(t *testing.T, directory string, layers int) {
	t.Helper()
	last := strconv.Itoa(layers - 1)
	for file, want := range map[string]string{"all": last, "layer0": "0", "layer" + last: last} {
		if content, err := os.ReadFile(filepath.Join(directory, file)); err != nil || string(content) != want {
			t.Errorf("%s: %q, %v; want %q", file, content, err, want)
		}
	}
}

// inOwnMounts calls a function on a thread with a mount namespace of its own.
func inOwnMounts(t *testing.T, call func()) {
	t.Helper()
	thread.Run(func() {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			t.Error(err)
			return
		}
		if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
			t.Error(err)
			return
		}
		call()
	})
}

func TestMount(t *testing.T) {
	for name, mount := range map[string]func(overlay.Overlay, string) error{
		"one option per layer": overlay.Overlay.Mount, "one option for all": overlay.Overlay.MountAtOnce,
	} {
		t.Run(name, func(t *testing.T) {
			o, target := newOverlay(t, 120)
			inOwnMounts(t, func() {
				if err := mount(o, target); err != nil {
					t.Error(err)
					return
				}
				target := "/proc/thread-self/root" + target
				checkLayers(t, target, 120)
				if err := os.WriteFile(filepath.Join(target, "new"), []byte("new"), 0o600); err != nil {
					t.Error(err)
				}
				mounts, err := os.ReadFile("/proc/thread-self/mounts")
				if err != nil || strings.Contains(string(mounts), "long:") {
					t.Errorf("the paths of the layers show in /proc/mounts: %v", err)
				}
			})
			if content, err := os.ReadFile(filepath.Join(o.Upper, "new")); err != nil || string(content) != "new" {
				t.Errorf("the upper directory has %q, %v", content, err)
			}
			if left, err := os.ReadDir(target); err != nil || len(left) > 0 {
				t.Errorf("the mount shows in this namespace: %v, %v", left, err)
			}
		})
	}
}

// TestKernel: the way that is taken is the one that this kernel has.
func TestKernel(t *testing.T) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	if has, want := overlay.TakesEachLayer(), major > 6 || major == 6 && minor >= 8; has != want {
		t.Errorf("Linux %d.%d takes the option lowerdir+: %v, want %v", major, minor, has, want)
	}
}

func TestOpen(t *testing.T) {
	for name, open := range map[string]func(overlay.Overlay) (*os.File, error){
		"one option per layer": overlay.Overlay.Open, "one option for all": overlay.Overlay.OpenAtOnce,
	} {
		t.Run(name, func(t *testing.T) {
			const layers = 8
			o, _ := newOverlay(t, layers)
			opened, err := open(overlay.Overlay{Lower: o.Lower})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = opened.Close() }()
			directory := "/proc/self/fd/" + strconv.Itoa(int(opened.Fd()))
			checkLayers(t, directory, layers)
			if err := os.WriteFile(filepath.Join(directory, "new"), nil, 0o600); err == nil {
				t.Error("the read-only overlay can be written to")
			}
		})
	}
}

// TestErrors: an error names the directory that cannot be used, or what the kernel was given when
// it does not say which.
func TestErrors(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*overlay.Overlay)
		want   string
	}{
		"missing layer":   {func(o *overlay.Overlay) { o.Lower[1] = "/no/such/layer" }, "/no/such/layer"},
		"layer is a file": {func(o *overlay.Overlay) { o.Lower[0] += "/all" }, "/all: not a directory"},
		"missing upper":   {func(o *overlay.Overlay) { o.Upper = "/no/such/upper" }, "/no/such/upper"},
		"missing work":    {func(o *overlay.Overlay) { o.Work = "" }, "open : "},
		"unfit upper":     {func(o *overlay.Overlay) { o.Upper = "/proc" }, "upper /proc"},
		"one layer only":  {func(o *overlay.Overlay) { *o = overlay.Overlay{Lower: o.Lower[:1]} }, "1 layers: invalid argument"},
		"work elsewhere":  {func(o *overlay.Overlay) { o.Work = "/dev/shm" }, "work /dev/shm"},
	} {
		t.Run(name, func(t *testing.T) {
			o, _ := newOverlay(t, 2)
			test.change(&o)
			opened, err := o.Open()
			if err == nil {
				_ = opened.Close()
				t.Fatal("the overlay opened")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error %q does not mention %q", err, test.want)
			}
		})
	}
}
