package console_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/openapi/document"
)

// TestSize holds the page to what it may weigh on its way to the browser, without the terminal
// emulator.
func TestSize(t *testing.T) {
	const most = 200 << 10
	entries, err := os.ReadDir("assets")
	if err != nil {
		t.Fatal(err)
	}
	size, names := int64(0), []string{}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, entry.Name())
		if entry.Name() != "terminal.js.gz" && entry.Name() != "licenses.txt" {
			size += info.Size()
		}
	}
	want := []string{
		"console.css.gz", "console.js.gz", "icon.svg", "licenses.txt", "terminal.js.gz",
	}
	if !slices.Equal(names, want) {
		t.Errorf("the assets are %q, want %q", names, want)
	}
	if size > most {
		t.Errorf("the console has %d bytes, at most %d are allowed", size, most)
	}
	t.Logf("%d bytes", size)
}

// TestAssetsNameNoMachine: what is bundled is the same wherever it is bundled.
func TestAssetsNameNoMachine(t *testing.T) {
	for _, name := range []string{"console.js.gz", "terminal.js.gz", "console.css.gz"} {
		packed, err := os.ReadFile(filepath.Join("assets", name))
		if err != nil {
			t.Fatal(err)
		}
		reader, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"node_modules", "sourceMappingURL", "/tmp/"} {
			if bytes.Contains(content, []byte(word)) {
				t.Errorf("%s contains %q", name, word)
			}
		}
	}
}

// TestFormHasTheContractsRules compares the rules of the form for a new sandbox with the
// contract's.
func TestFormHasTheContractsRules(t *testing.T) {
	contract, err := document.LoadLifecycle()
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("web/src/contract.js")
	if err != nil {
		t.Fatal(err)
	}
	schemas := contract.Components.Schemas
	timeout := schemas["CreateSandboxRequest"].Value.Properties["timeout"].Value
	want := []string{
		fmt.Sprintf("timeout: { minimum: %v, maximum: %v }", *timeout.Min, *timeout.Max),
	}
	for _, name := range []string{"cpu", "memory", "gpu"} {
		pattern := schemas["ResourceLimits"].Value.Properties[name].Value.Pattern
		want = append(want, fmt.Sprintf("%s: '%s'", name, strings.ReplaceAll(pattern, `\`, `\\`)))
	}
	var actions []string
	for _, action := range schemas["NetworkAction"].Value.Enum {
		actions = append(actions, fmt.Sprintf("'%v'", action))
	}
	want = append(want, "actions: ["+strings.Join(actions, ", ")+"]")
	for _, line := range want {
		if !strings.Contains(string(source), line+",\n") {
			t.Errorf("contract.js lacks %s", line)
		}
	}
}
