"use strict";

const place = document.getElementById("contract");

if (place.dataset.program === "swagger") {
  SwaggerUIBundle({
    domNode: place,
    url: place.dataset.try,
    deepLinking: true,
    docExpansion: "list",
    defaultModelsExpandDepth: 0,
    displayRequestDuration: true,
    tryItOutEnabled: true,
    // A key that was typed in lives as long as the page, and is written nowhere.
    persistAuthorization: false,
    // Swagger UI would otherwise send the contract to a validator on the internet.
    validatorUrl: null,
  });
} else {
  Redoc.init(
    place.dataset.source,
    {
      scrollYOffset: ".bar",
      expandResponses: "200,202",
      showExtensions: ["x-extension"],
      theme: {
        typography: { fontFamily: "system-ui, sans-serif", headings: { fontFamily: "system-ui, sans-serif" } },
      },
    },
    place,
  );
}
