# docker build -t mmspec . && docker run --rm -p 8000:8000 mmspec
# docker run --rm --gpus all -p 8000:8000 -v mmspec-hub:/home/mmspec/.cache mmspec serve OWNER/MODEL --host 0.0.0.0 --device cuda
#
# For a device, build with its wheels of torch: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130
FROM python:3.12-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN apt-get update && apt-get install --yes --no-install-recommends libsndfile1 && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 mmspec \
    # A new volume takes the owner of the folder it is mounted at.
    && install --directory --owner=mmspec --group=mmspec /home/mmspec/.cache
COPY .ci/docker.lock /docker.lock
RUN pip install --no-cache-dir --constraint /docker.lock torch torchaudio --index-url "$TORCH_INDEX"
COPY . /src
RUN pip install --no-cache-dir --constraint /docker.lock "/src[serve]" && rm -rf /src
USER 1000
WORKDIR /home/mmspec
EXPOSE 8000
# Keys come from the environment: -e MMSPEC_API_KEYS=KEY,KEY
HEALTHCHECK --interval=10s --start-period=60s CMD \
    ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["mmspec"]
CMD ["serve", "shapes", "spoken", "--host", "0.0.0.0"]
