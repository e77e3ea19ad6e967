package openapi_test

import (
	"bytes"
	"os"
	"testing"

	"sandbox.internal/openapi"
	parsed "sandbox.internal/openapi/document"
)

func TestEmbeddedContractsAreTheFiles(t *testing.T) {
	for name, embedded := range map[string]func() []byte{
		"lifecycle.yaml": openapi.Lifecycle,
		"execd.yaml":     openapi.Execd,
		"egress.yaml":    openapi.Egress,
	} {
		file, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		got := embedded()
		if !bytes.Equal(got, file) {
			t.Errorf("%s: the embedded contract differs from the file", name)
		}
		clear(got)
		if !bytes.Equal(embedded(), file) {
			t.Errorf("%s: a caller can change the embedded contract", name)
		}
	}
}

func TestLoadedContractsAreTheCallersOwn(t *testing.T) {
	first, err := parsed.LoadLifecycle()
	if err != nil {
		t.Fatal(err)
	}
	first.Info.Title = "changed"
	second, err := parsed.LoadLifecycle()
	if err != nil {
		t.Fatal(err)
	}
	if second.Info.Title == "changed" {
		t.Error("two loads share a document")
	}
}
