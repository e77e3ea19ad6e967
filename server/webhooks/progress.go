package webhooks

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sandbox.internal/server/lifecycle"
)

// progress is what a webhook's file holds.
type progress struct {
	// Cursor is the sequence of the last event that was delivered, or that the webhook does not
	// select.
	Cursor int64 `json:"cursor"`
	// Reset is set until the receiver has accepted that events before Cursor are lost.
	Reset *reset `json:"reset,omitempty"`
}

// reset is the loss of events. Every try to report it has the same id, also after a restart.
type reset struct {
	After int64     `json:"after"` // the cursor before
	At    time.Time `json:"at"`
}

// errUnreadable is the content of a file that is no progress.
var errUnreadable = errors.New("the file cannot be read as a cursor")

// A file is written under another name first.
const progressSuffix, draftSuffix = ".json", ".new"

// fileOf returns the name of a webhook's file. Another URL or other events are another webhook.
func fileOf(w Webhook) string {
	events := slices.Clone(w.Events)
	slices.Sort(events)
	described, _ := json.Marshal(struct { // strings always encode
		URL    string
		Events []lifecycle.EventType
	}{w.URL, events})
	digest := sha256.Sum256(described)
	return hex.EncodeToString(digest[:16]) + progressSuffix
}

func readProgress(path string) (p progress, err error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(content, &p); err != nil || p.Cursor < 0 {
		return p, fmt.Errorf("%s: %w", path, errUnreadable)
	}
	return p, nil
}

// write replaces the file. Whatever ends the service, the file has the old content or the new one.
func (p progress) write(path string) error {
	content, err := json.Marshal(p)
	if err != nil {
		return err
	}
	draft := path + draftSuffix
	file, err := os.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(append(content, '\n'))
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(draft, path)
}

// removeOthers removes the files of webhooks that are not among the kept ones.
func removeOthers(directory string, kept map[string]bool) error {
	entries, err := os.ReadDir(directory)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // without any webhook there may be no directory
		return err
	}
	for _, entry := range entries {
		name := strings.TrimSuffix(entry.Name(), draftSuffix)
		if strings.HasSuffix(name, progressSuffix) && !kept[name] {
			if err := os.Remove(filepath.Join(directory, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
