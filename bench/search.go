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
	searchFolders = 100
	searchEach    = 1000 // files in each of them
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
	root, err := b.folder("search")
	if err != nil {
		return err
	}
	folders := searchFolders
	if b.scale != scaleFull {
		folders /= 5
	}
	files := folders * searchEach
	for i := range folders {
		folder := filepath.Join(root, fmt.Sprint("folder-", i))
		if err := os.Mkdir(folder, 0o755); err != nil {
			return err
		}
		for j := range searchEach {
			if err := os.WriteFile(filepath.Join(folder, fmt.Sprint("file-", j, ".txt")), nil,
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
