package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

const (
	// maxTorn bounds what a crash can leave of lines that were being written, in bytes.
	maxTorn = 1 << 20
	// maxKept bounds how much of it the repairing line repeats.
	maxKept = 64 << 10
)

// inspect verifies a file that was written before. What a crash has left behind the last whole line
// it returns in the fields torn and torn_bytes. Anything else that is wrong is an error: to cut off
// more would destroy evidence.
func inspect(file *os.File, size int64) (Report, line, error) {
	report, err := Verify(io.NewSectionReader(file, 0, size), "")
	var broken *BrokenError
	if err == nil || !errors.As(err, &broken) {
		return report, line{}, err
	}
	refused := fmt.Errorf("%w; move the file aside to begin a new log, and keep it: it is evidence",
		err)
	length := size - report.size
	if length > maxTorn {
		return report, line{}, refused
	}
	rest := make([]byte, length)
	if _, err := file.ReadAt(rest, report.size); err != nil {
		return report, line{}, fmt.Errorf("read the audit log: %w", err)
	}
	// Another program's file must not be truncated because a configuration names it.
	ours := report.Lines > 0 || bytes.HasPrefix(rest, []byte(prefix)) ||
		bytes.HasPrefix([]byte(prefix), rest) || rest[0] == 0
	if !ours {
		return report, line{}, errors.New("is not an audit log")
	}
	for text := range bytes.Lines(rest) {
		if _, err := unseal(bytes.TrimSuffix(text, []byte("\n"))); err == nil &&
			bytes.HasSuffix(text, []byte("\n")) {
			// lines that were written whole do not follow one that was not
			return report, line{}, refused
		}
	}
	return report, line{Torn: string(rest[:min(length, maxKept)]), TornBytes: length}, nil
}
