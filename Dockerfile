# syntax=docker/dockerfile:1
# A service for the models of `autodial export`, without PyTorch and without root.
#
#   docker build -t autodial .                                                        runs models on the CPU
#   docker build -t autodial-gpu --build-arg RUNTIME="onnxruntime-gpu[cuda,cudnn]" .  on NVIDIA's GPUs (docker run --gpus all)
#
#   docker run --read-only --cap-drop ALL -v "$PWD/models:/models:ro" -p 127.0.0.1:8000:8000 autodial
#
# models/ holds target_predictor.onnx; other arguments are those of `autodial serve` (`docker run ... autodial serve ...`).
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
ARG RUNTIME=onnxruntime
WORKDIR /source
COPY . .
RUN python -m venv /opt/autodial \
    && /opt/autodial/bin/pip install --no-cache-dir --no-deps .
# What the package needs for `autodial serve`, with the ONNX Runtime that was chosen in the place of its own.
RUN /opt/autodial/bin/python examples/docker/requirements.py serve > /tmp/requirements.txt \
    && /opt/autodial/bin/pip install --no-cache-dir -r /tmp/requirements.txt "${RUNTIME}>=1.21" \
    && /opt/autodial/bin/autodial doctor

FROM python:${PYTHON}-slim
COPY --from=build /opt/autodial /opt/autodial
ENV PATH=/opt/autodial/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /models
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=2)"]
ENTRYPOINT ["autodial"]
CMD ["serve", "--host", "0.0.0.0", "--log-format", "json", "/models/target_predictor.onnx"]
