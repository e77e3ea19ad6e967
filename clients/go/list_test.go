package sandbox_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	sandbox "sandbox.internal/clients/go"
)

// TestListYieldsEachOnce: sandboxes leave the list between its pages, because the caller ends what
// it gets and because others end, which moves those behind them to pages that were read already.
func TestListYieldsEachOnce(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var there []string
	for i := range 250 {
		there = append(there, fmt.Sprintf("box-%03d", i))
	}
	want := slices.Clone(there)
	others := []string{"box-000", "box-001"} // end when a later page is asked for
	end := func(id string) {
		there = slices.DeleteFunc(there, func(other string) bool { return other == id })
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		query := r.URL.Query()
		page, err := strconv.Atoi(query.Get("page"))
		if err != nil || query.Get("state") != sandbox.Running {
			t.Errorf("a request for %s", r.URL)
		}
		size, err := strconv.Atoi(query.Get("pageSize"))
		if err != nil || size < 1 || size >= len(want)/2 {
			t.Errorf("a page has %d sandboxes, %v", size, err)
		}
		if page > 1 && len(others) > 0 {
			end(others[0])
			others = others[1:]
		}
		var items []string
		for _, id := range there[min((page-1)*size, len(there)):min(page*size, len(there))] {
			items = append(items, strings.Replace(scriptedBox, `"box"`, strconv.Quote(id), 1))
		}
		_, _ = fmt.Fprintf(w, `{"items":[%s],"pagination":{"page":%d,"pageSize":%d,"totalItems":%d,"totalPages":%d,"hasNextPage":%t}}`,
			strings.Join(items, ","), page, size, len(there), (len(there)+size-1)/size, page*size < len(there))
	})
	var got []string
	for info, err := range scripted(t, mux).List(t.Context(), &sandbox.ListOptions{States: []string{sandbox.Running}}) {
		check(t, err)
		got = append(got, info.ID)
		mu.Lock()
		end(info.ID)
		mu.Unlock()
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d sandboxes of %d: %v", len(got), len(want), got)
	}
}
