package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	sandbox "sandbox.internal/clients/go"
)

const (
	streamCommand = `for i in 1 2 3 4 5; do echo "line $i"; sleep 0.2; done`
	streamOutput  = "line 1\nline 2\nline 3\nline 4\nline 5\n"
	// streamSpread is how far apart the first and the last line must arrive to count as
	// streamed. They are written 0.8 s apart; a busy machine may bunch some of it.
	streamSpread = 400 * time.Millisecond

	fileRoot = "/tmp/sandbox-demo"
	filePath = fileRoot + "/reports/weekly/notes.txt" // in directories that do not exist yet
	fileMode = 640
	oldText  = "outside"
	newText  = "inside"

	rangeStart, rangeLength = 1000, 1000
)

// fileContent is what goes up. It is longer than the range, and not all ASCII.
func fileContent() string {
	var content strings.Builder
	for i := range 200 {
		_, _ = fmt.Fprintf(&content, "%03d: written outside – every byte counts\n", i)
	}
	return content.String()
}

// changedContent is what the file must hold after the replace.
func changedContent() string { return strings.ReplaceAll(fileContent(), oldText, newText) }

func (l *demoSandbox) stream(ctx context.Context) (string, error) {
	l.table.note("$ " + streamCommand)
	start := time.Now()
	var first, last time.Duration
	result, err := l.box.Commands.Run(ctx, streamCommand, &sandbox.RunOptions{
		OnStdout: func(output []byte) {
			last = time.Since(start)
			if first == 0 {
				first = last
			}
			l.table.note(fmt.Sprintf("%6.3f s  %s", last.Seconds(), bytes.TrimRight(output, "\n")))
		}})
	if err = errors.Join(err, result.Err()); err != nil {
		return "", err
	}
	if result.Stdout != streamOutput {
		return "", fmt.Errorf("the output is %q, not %q", result.Stdout, streamOutput)
	}
	if last-first < streamSpread {
		return "", fmt.Errorf("all lines arrived within %s: they were collected, not streamed",
			duration(last-first))
	}
	return fmt.Sprintf("5 lines as they were written, over %s", duration(last-first)), nil
}

func (l *demoSandbox) upload(ctx context.Context) (string, error) {
	err := l.box.Files.WriteText(ctx, filePath, fileContent(),
		&sandbox.WriteOptions{Mode: strconv.Itoa(fileMode)})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d bytes to %s", len(fileContent()), filePath), nil
}

func (l *demoSandbox) search(ctx context.Context) (string, error) {
	const pattern = "**/*.txt"
	found, err := l.box.Files.Search(ctx, fileRoot, pattern)
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s below %s matches %d files, not 1", pattern, fileRoot, len(found))
	}
	file := found[0]
	if file.Path != filePath || file.Size != int64(len(fileContent())) || file.Mode != fileMode {
		return "", fmt.Errorf("found %s with %d bytes and mode %d, not %s with %d and %d",
			file.Path, file.Size, file.Mode, filePath, len(fileContent()), fileMode)
	}
	return fmt.Sprintf("%s finds it, with mode %d", pattern, file.Mode), nil
}

func (l *demoSandbox) replace(ctx context.Context) (string, error) {
	err := l.box.Files.Replace(ctx, map[string]sandbox.Replacement{
		filePath: {Old: oldText, New: newText}})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("every %q is now %q", oldText, newText), nil
}

func (l *demoSandbox) download(ctx context.Context) (string, error) {
	want := changedContent()
	if err := l.fetch(ctx, nil, want); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d bytes, all as expected", len(want)), nil
}

func (l *demoSandbox) downloadRange(ctx context.Context) (string, error) {
	whole := changedContent()
	err := l.fetch(ctx, &sandbox.ReadOptions{Offset: rangeStart, Length: rangeLength},
		whole[rangeStart:rangeStart+rangeLength])
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("bytes %d-%d of %d, all as expected", rangeStart, rangeStart+rangeLength-1,
		len(whole)), nil
}

// fetch downloads the file, or a part of it, and compares it with want, byte by byte.
func (l *demoSandbox) fetch(ctx context.Context, part *sandbox.ReadOptions, want string) error {
	content, err := l.box.Files.Open(ctx, filePath, part)
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }()
	// One byte more than expected is enough to see that there are too many.
	got, err := io.ReadAll(io.LimitReader(content, int64(len(want))+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", filePath, err)
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d is %#02x, not %#02x", i, got[i], want[i])
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("%d bytes arrived and not %d", len(got), len(want))
	}
	return nil
}

// metrics checks that the numbers are the sandbox's own: no more than its limits.
func (l *demoSandbox) metrics(ctx context.Context) (string, error) {
	m, err := l.box.Metrics(ctx)
	if err != nil {
		return "", err
	}
	cores, mebibytes := math.Inf(1), math.Inf(1)
	if limits := l.box.Info().Limits; limits != nil && limits.CPUMillis != nil {
		cores = float64(*limits.CPUMillis) / 1000
	}
	if limits := l.box.Info().Limits; limits != nil && limits.MemoryBytes != nil {
		mebibytes = float64(*limits.MemoryBytes) / (1 << 20)
	}
	switch {
	case m.CPUCount <= 0 || m.CPUCount > cores:
		err = fmt.Errorf("cpu_count is %g, beyond the limit of %g cores", m.CPUCount, cores)
	case m.CPUUsedPct < 0 || m.CPUUsedPct > 100:
		err = fmt.Errorf("cpu_used_pct is %g, not between 0 and 100", m.CPUUsedPct)
	case m.MemTotalMib <= 0 || m.MemTotalMib > mebibytes:
		err = fmt.Errorf("mem_total_mib is %g, beyond the limit of %g", m.MemTotalMib, mebibytes)
	case m.MemUsedMib <= 0 || m.MemUsedMib > m.MemTotalMib:
		err = fmt.Errorf("mem_used_mib is %g of %g", m.MemUsedMib, m.MemTotalMib)
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%.1f%% of %g CPU, %.1f of %g MiB", m.CPUUsedPct, m.CPUCount, m.MemUsedMib,
		m.MemTotalMib), nil
}

// checkResumed runs a command that needs what was there before the pause.
func (l *demoSandbox) checkResumed(ctx context.Context) error {
	result, err := l.box.Commands.Run(ctx, "wc -c < "+filePath, nil)
	if err = errors.Join(err, result.Err()); err != nil {
		return fmt.Errorf("a command after the resume: %w", err)
	}
	want := strconv.Itoa(len(changedContent()))
	if got := strings.TrimSpace(result.Stdout); got != want {
		return fmt.Errorf("after the resume the file has %q bytes, not %s", got, want)
	}
	return nil
}
