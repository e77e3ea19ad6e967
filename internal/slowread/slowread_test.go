package slowread_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/internal/slowread"
)

func TestNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text, began := strings.Repeat("x", 4000), time.Now()
		got, err := io.ReadAll(slowread.New(t.Context(), strings.NewReader(text), 1000))
		if err != nil || string(got) != text {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if took := time.Since(began).Round(100 * time.Millisecond); took != 3*time.Second { // the first second's are there at once
			t.Errorf("4000 bytes at 1000 per second took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began = time.Now()
		endless := slowread.New(ctx, zeros{}, 10)
		if _, err := io.Copy(io.Discard, endless); err == nil || errors.Is(err, io.EOF) || time.Since(began) > time.Hour {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// zeros are without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
