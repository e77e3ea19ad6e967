package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

const (
	searchDirectories = 100
	searchEach        = 1000 // files in each of them
)

// measureSearch measures a search that finds every file of a large tree, which the kernel has in
// its memory.
func (b *bench) measureSearch(ctx context.Context) error {
	p, daemon, err := b.startExecd(ctx)
	if err != nil {
		return err
	}
	defer p.stop()
	floor, err := b.startWorker(ctx)
	if err != nil {
		return err
	}
	defer floor.Stop()
	root, err := b.directory("search")
	if err != nil {
		return err
	}
	directories := searchDirectories
	if b.scale != scaleFull {
		directories /= 5
	}
	files := directories * searchEach
	for i := range directories {
		directory := filepath.Join(root, fmt.Sprint("directory-", i))
		if err := os.Mkdir(directory, 0o755); err != nil {
			return err
		}
		for j := range searchEach {
			if err := os.WriteFile(filepath.Join(directory, fmt.Sprint("file-", j, ".txt")), nil,
				0o644); err != nil {
				return err
			}
		}
	}
	target := "/files/search?pattern=" + url.QueryEscape("**/*.txt") + "&path=" +
		url.QueryEscape(root)
	return b.inTurns(ctx, rowSearch, b.rounds(9, 3), sides{
		ours: func(ctx context.Context) (float64, error) {
			began := time.Now()
			response, err := daemon.call(ctx, http.MethodGet, target, "", nil)
			if err != nil {
				return 0, err
			}
			defer response.Body.Close()
			var found []struct{}
			if err := json.NewDecoder(response.Body).Decode(&found); err != nil {
				return 0, err
			}
			took := elapsed(began)
			if len(found) != files {
				return 0, fmt.Errorf("%w: %d files were found", errLost, len(found))
			}
			return took, nil
		},
		floor: floor.one("walk", root, strconv.Itoa(files)),
	})
}
