package compat

import (
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"
)

// metrics answers with the fields of the document alone.
func (h *handler) metrics(c echo.Context) error {
	found, err := h.ask(c.Request(), http.MethodGet, "/metrics", nil)
	if err != nil {
		return err
	}
	var snapshot map[string]json.RawMessage
	if err := json.Unmarshal(found, &snapshot); err != nil {
		return err
	}
	for _, extension := range []string{"mem_cache_mib", "disk_total_mib", "disk_used_mib"} {
		delete(snapshot, extension)
	}
	return c.JSON(http.StatusOK, snapshot)
}
