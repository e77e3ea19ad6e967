package jupyter

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestWireSignature(t *testing.T) {
	// printf '{"a":1}{}{}[2]' | openssl dgst -sha256 -hmac key
	const want = "b677be7977a9f9ddeaea64b0daed935fca9d7fcaeb7e69b1fd02e033f943ba91"
	got := wire{key: []byte("key")}.sign([][]byte{[]byte(`{"a":1}`), []byte(`{}`), []byte(`{}`),
		[]byte(`[2]`)})
	if string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestWireRoundTrip(t *testing.T) {
	w := wire{key: []byte("secret")}
	m := executeRequest("session", "print('é')")
	m.Parent = header{ID: "parent"}
	frames, err := w.encode(m)
	if err != nil {
		t.Fatal(err)
	}
	for name, received := range map[string][][]byte{
		"as sent":      frames,
		"with a topic": append([][]byte{[]byte("kernel.1.stream")}, frames...),
		"with buffers": append(append([][]byte{}, frames...), []byte("raw")),
	} {
		got, err := w.decode(received, channelShell)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%s: got %+v, %v\nwant %+v", name, got, err, m)
		}
	}
}

func TestWireRefuses(t *testing.T) {
	w := wire{key: []byte("secret")}
	encode := func(w wire, m message) [][]byte {
		frames, err := w.encode(m)
		if err != nil {
			t.Fatal(err)
		}
		return frames
	}
	good := executeRequest("session", "1")
	changed := encode(w, good)
	changed[5] = []byte(`{"code":"2"}`)
	unsigned := encode(w, good)
	unsigned[1] = nil
	notJSON := [][]byte{[]byte("{"), []byte("{}"), []byte("{}"), []byte("{}")}
	for _, test := range []struct {
		name      string
		frames    [][]byte
		signature bool
		says      string
	}{
		{"another key", encode(wire{key: []byte("other")}, good), true, ""},
		{"changed content", changed, true, ""},
		{"no signature", unsigned, true, ""},
		{"no delimiter", [][]byte{[]byte("a"), []byte("b")}, false, delimiter},
		{"nothing", nil, false, delimiter},
		{"too few frames", encode(w, good)[:5], false, "five frames"},
		{"a header that is no JSON",
			append([][]byte{[]byte(delimiter), w.sign(notJSON)}, notJSON...), false, "header"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := w.decode(test.frames, channelShell)
			if err == nil || errors.Is(err, errSignature) != test.signature ||
				!strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestSpecEnviron(t *testing.T) {
	spec := kernelspec{Env: map[string]string{"A": "${HOME}/a:${UNKNOWN}"}}
	got := spec.environ([]string{"HOME=/h", "EXECD_TOKEN=secret"})
	if want := []string{"HOME=/h", "A=/h/a:${UNKNOWN}"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestConnectionIsPrivate(t *testing.T) {
	for _, test := range []struct{ name, parent, argv, transport, network string }{
		{"ipykernel", "", "ipykernel_launcher", transportIPC, "unix"},
		{"another kernel", "", "other", transportTCP, "tcp"},
		{"a long path", strings.Repeat("x", 100), "ipykernel_launcher", transportTCP, "tcp"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := privateConnection(t, test.parent, kernelspec{name: "k", Argv: []string{test.argv}})
			content := readPrivate(t, c.file)
			var info connectionInfo
			if err := json.Unmarshal(content, &info); err != nil {
				t.Fatal(err)
			}
			if network, _ := c.address(channelShell); info.Transport != test.transport ||
				network != test.network {
				t.Errorf("transport %s, network %s", info.Transport, network)
			}
			if ports := map[int]bool{info.Shell: true, info.IOPub: true, info.Stdin: true,
				info.Control: true, info.Heartbeat: true}; len(ports) != 5 || ports[0] {
				t.Errorf("ports: %v", ports)
			}
			if len(info.Key) < 20 || info.Key != string(c.key) {
				t.Errorf("key: %q", info.Key)
			}
		})
	}
}

func privateConnection(t *testing.T, below string, spec kernelspec) *connection {
	t.Helper()
	parent := filepath.Join(os.TempDir(), below)
	if below != "" {
		parent = filepath.Join(t.TempDir(), below)
		if err := os.Mkdir(parent, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c, err := newConnection(parent, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.remove(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// readPrivate returns the content of a file that only its owner can reach.
func readPrivate(t *testing.T, path string) []byte {
	t.Helper()
	for path, want := range map[string]os.FileMode{path: 0o600,
		filepath.Dir(path): os.ModeDir | 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
