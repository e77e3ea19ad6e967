package containerlog

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/runtime/oci/internal/layout"
)

// TestLogOfARemovedContainer: a container that has printed nothing has an empty log, and one that
// is gone has none here: its log is read elsewhere.
func TestLogOfARemovedContainer(t *testing.T) {
	there := layout.Container(t.TempDir())
	log, err := openLogFiles(there)
	if err != nil || log.size() != 0 {
		t.Fatalf("the log of a container that has printed nothing: %v, %v", log, err)
	}
	log.close()
	if _, err := openLogFiles(layout.Container(filepath.Join(string(there), "gone"))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the log of a container that is gone: %v", err)
	}
}
